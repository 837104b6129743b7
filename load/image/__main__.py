"""Build the image and run its programs in it; check the manifests that deploy it.

    python -m load.image [--json FILE]

The report has `built` (by what), `demo` and the exit statuses of other programs, `size_mb` of the files in the image and in the
demo's, and `manifests_valid` for all overlays and the compose file. Programs run with a read-only root, with the compose file's
folders in memory, without capabilities and without a network.
Exit status: 0 if all of it is as it should be, 1 if something is not, an error's own status when there is no image.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from load.image.build import build, check_tools, make_base
from load.image.container import Container, Ran
from load.manifests.render import FOLDER, OVERLAYS, render
from load.manifests.schemas import compose_problems, problems
from load.report import reported
from load.servers.server_process import PATIENCE
from service.spark.places import ROOT

COMPOSE = ROOT / "deploy" / "container" / "compose.yaml"
DEMO = ("tidemark", "demo", "--for", "20s", "--rate", "1000", "--devices", "500")
DEMO_S = 300.0
SHORT_S = 60.0
FOREIGN = "import urllib.request as u; u.urlopen('http://192.0.2.1/', timeout=5)"
TOUCH = "touch /opt/tidemark/x || touch /etc/x || touch /usr/bin/x || touch /x"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make image", description="Builds the image and runs its programs in it.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the report")
    args = parser.parse_args()
    return reported(report, args.json, lambda each: not each["failed"] and not each["problems"])


def report() -> dict[str, Any]:
    """Build, run and check. Raises SetupError when there is no image."""
    check_tools()
    began = time.monotonic()
    make_base()
    demo_image, image = build("demo"), build("runtime")
    built_s = time.monotonic() - began
    invalid = manifest_problems()
    result: dict[str, Any] = {
        "built": "buildah on mmdebstrap",
        "seconds": round(built_s),
        "manifests_valid": not invalid,
        "problems": invalid,
    }
    expected: dict[str, tuple[tuple[str, ...], int]] = {
        "help": (("tidemark", "--help"), 0),
        "dashboard": (("tidemark-dashboard", "--help"), 0),
        "generator": (("python", "-m", "load.fleet.generator", "--help"), 0),
        "no_settings": (("tidemark", "check"), 2),
        "network": (("python", "-c", FOREIGN), 1),
        "write_to_root": (("sh", "-c", TOUCH), 1),
    }
    failed: list[str] = []

    def note(name: str, ran: Ran, status: int) -> None:
        result[name] = ran.status
        if ran.status != status:
            failed.append(f"{name}: status {ran.status}, {status} expected; " + ran.output[-2_000:])

    folders = compose_folders()
    with Container(image, {**folders, "/var/lib/tidemark": "size=64m"}) as container:
        result["size_mb"] = container.size_mb()
        for name, (words, status) in expected.items():
            note(name, container.run(*words, seconds=SHORT_S * PATIENCE), status)
    with Container(demo_image, folders) as container:
        result["demo_size_mb"] = container.size_mb()
        note("demo", container.run(*DEMO, seconds=DEMO_S * PATIENCE), 0)
    return {**result, "failed": failed}


def compose_folders() -> dict[str, str]:
    """Return the folders in memory that the compose file gives a container of the image: path -> options of `--tmpfs`."""
    ours: dict[str, list[str]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["x-tidemark"]
    parts = (each.partition(":") for each in ours["tmpfs"])
    return {path: f"{options},size=3g".removeprefix(",") for path, _, options in parts}


def manifest_problems() -> list[str]:
    """Return what the schemas refuse in the overlays and in the compose file."""
    found = compose_problems(COMPOSE.read_text(encoding="utf-8"))
    for name in OVERLAYS:
        found += [each for document in render(FOLDER / "overlays" / name) for each in problems(document)]
    return found


if __name__ == "__main__":
    sys.exit(main())

"""Build the image with buildah, on a base that mmdebstrap makes of Debian's packages.

A registry of images is not needed. The Containerfile's own BASE is the same distribution; the steps after it are the same.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.errors import SetupError
from service.spark.places import ROOT

CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
SUITE = "bookworm"
BASE = f"localhost/tidemark-base:{SUITE}"
TOOLS = ("buildah", "mmdebstrap", "unshare", "ip", "hostname")
_TRUSTED = Path("/usr/local/share/ca-certificates")
"""Certificates that this machine trusts in addition to Debian's: of a proxy before the package indexes, for one."""


def check_tools() -> None:
    """Raise SetupError when this machine cannot build and run the image."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        what = f"No {', '.join(missing)} on PATH"
        raise SetupError(what, remedy="Debian: apt-get install buildah mmdebstrap util-linux iproute2 hostname.")
    if os.geteuid() != 0:
        what = "Building and running the image needs root, for mounts and chroot"
        raise SetupError(what, remedy="Run it as root in a virtual machine or a container.")


def buildah(*words: str) -> str:
    """Run buildah and return its output. Raises SetupError with the last lines of its messages."""
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(["buildah", *words], capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        what = f"buildah {words[0]} ended with status {done.returncode}:\n{tail}"
        raise SetupError(what, remedy=f"Correct {CONTAINERFILE.relative_to(ROOT)}, or the machine.")
    return done.stdout.strip()


@contextmanager
def container_of(image: str) -> Iterator[str]:
    """A container for a while; its name."""
    name = buildah("from", image)
    try:
        yield name
    finally:
        buildah("rm", name)


def make_base() -> None:
    """Make the image BASE, if there is none."""
    if buildah("images", "--quiet", "--filter", f"reference={BASE}"):
        return
    with tempfile.TemporaryDirectory(prefix="tidemark-base-") as folder:
        root = Path(folder) / "root"
        command = ["mmdebstrap", "--variant=minbase", "--format=directory", SUITE, str(root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            what = f"mmdebstrap ended with status {done.returncode}: {done.stderr[-1_000:]}"
            raise SetupError(what, remedy="It needs Debian's packages: see apt's sources and proxies.")
        if _TRUSTED.is_dir():
            shutil.copytree(_TRUSTED, root / "usr/local/share/ca-certificates", dirs_exist_ok=True)
        with container_of("scratch") as container:
            buildah("add", "--quiet", container, str(root), "/")
            buildah("commit", "--quiet", container, BASE)


def build(target: str) -> str:
    """Build a stage of the Containerfile, from the cache where no step has changed; return the image's name."""
    name = f"localhost/tidemark-{target}"
    buildah(
        *("build", "--layers", "--file", str(CONTAINERFILE), "--ignorefile", str(ROOT / ".containerignore")),
        *("--build-arg", f"BASE={BASE}", "--target", target, "--tag", name, str(ROOT)),
    )
    return name

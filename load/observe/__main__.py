"""Bring about the cause of every alert, and watch the alerts fire, reach their receiver and clear.

    python -m load.observe [--only TidemarkBehind] [--at-once 2] [--json FILE] [--page FILE] [--folder FOLDER]

Each scene of load/observe/scenes has a service of its own. Exit status 0 only when every alert fired, was notified with a link
that exists, and cleared, the service's /conditions and `tidemark status` showed the same, and every query of the dashboards
returned data.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from load.observe.rules import environment, rules
from load.observe.scenes import SCENES
from load.observe.table import page, report
from load.observe.watch import Watch
from load.report import reported
from load.testbed import ROOT
from service.errors import SetupError

FOLDER = ROOT / ".build" / "observe"


def play(only: Sequence[str] = (), at_once: int = 2, folder: Path = FOLDER) -> dict[str, Any]:
    """Play all alerts, or the alerts and scenes named `only`, and return the figures. Raises SetupError."""
    played_rules = rules()
    known = {*(scene.job for scene in SCENES), *played_rules}
    if unknown := sorted(set(only) - known):
        what = f"There is no alert and no scene {unknown[0]!r}"
        raise SetupError(what, remedy=f"Scenes and alerts: {', '.join(sorted(known))}")
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    os.environ.update(environment(played_rules, folder / "rules.json"))
    scenes = [scene(folder) for scene in SCENES]
    chosen = {alert for scene in scenes for alert in scene.alerts if not only or {scene.job, alert} & set(only)}
    playing = [scene for scene in scenes if scene.alerts & chosen]
    targets = {scene.job: scene.testbed.metrics_port for scene in scenes}
    with Watch(folder, targets, played_rules) as watch, ThreadPoolExecutor(at_once, thread_name_prefix="scene") as pool:
        try:
            rows = [row for played in pool.map(lambda scene: scene.play(watch, chosen), playing) for row in played]
        except KeyboardInterrupt:
            for scene in playing:
                scene.interrupt()
            raise
        empty = watch.empty_queries
    return report(played_rules, rows, empty, time.monotonic() - began)


def passes(figures: Mapping[str, Any], *, is_part: bool = False) -> bool:
    """Whether every alert did all that it must; with `is_part`, every alert that was played."""
    expected = len(figures["rows"]) if is_part else figures["alerts"]
    counts = [figures["fired"], figures["notified"], figures["cleared"]]
    is_well = counts == [expected] * 3 and figures["different"] == 0
    return is_well and (is_part or figures["empty_queries"] == 0)


def main(argv: Sequence[str] | None = None) -> int:
    """0 when everything is as it must be, 1 when something is not, an error's own status when nothing could be played."""
    parser = argparse.ArgumentParser(prog="make observe", description="Alerts, brought about and watched.")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="play these alerts, or those of these scenes"
    )
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="scenes that run at the same time")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table as a page if everything passes")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where all files go; it is emptied")
    args = parser.parse_args(argv)

    def is_well(figures: Mapping[str, Any]) -> bool:
        passed = passes(figures, is_part=bool(args.only))
        if passed and not args.only and args.page:
            args.page.write_text(page(figures), encoding="utf-8")
        return passed

    return reported(lambda: play(args.only, args.at_once, args.folder), args.json, is_well)


if __name__ == "__main__":
    sys.exit(main())

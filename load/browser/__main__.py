"""`make browser`: the dashboard page in a real browser, on the real service under load."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from load.browser import steps
from load.browser.stage import FOLDER, Stage
from load.browser.values import newest_rejects, statistics, values_under_load
from load.fleet.options import seconds_of
from load.report import reported

ZERO = "failed", "different_values", "console_errors", "foreign_requests", "violations", "active_elements"
"""Figures that must be 0."""
SCREENSHOTS = 14
STEPS: tuple[Callable[[Stage], None], ...] = (
    values_under_load,
    statistics,
    newest_rejects,
    steps.updates,
    steps.first_paint,
    steps.times,
    steps.zoom,
    steps.pictures,
    steps.ten_pages,
    steps.accessibility,
    steps.keyboard,
    steps.hostile_names,
    steps.runbook,
    steps.dashboard_restarts,
    steps.redis_empty,
    steps.service_killed,
    steps.redis_away,
    steps.service_stops,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run; 0 when nothing was found, 1 when something was, an error's own status when there is no result."""
    parser = argparse.ArgumentParser(prog="make browser", description="The dashboard page in a real browser.")
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=5_000.0, help="readings a second")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="without the cost of ten open pages")
    parser.add_argument("--only", metavar="NAMES", help="some steps, such as 'redis_empty redis_away'")
    parser.add_argument("--pairs", type=int, default=5, help="measurements with and without ten open pages")
    parser.add_argument("--seconds", type=seconds_of, default=15.0, metavar="15s", help="of each measurement")
    parser.add_argument("--axe", type=Path, required=True, metavar="FILE", help="the script of axe-core")
    parser.add_argument("--pictures", type=Path, default=FOLDER.parent / "pictures", metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the report")
    args = parser.parse_args(argv)
    names = [step.__name__ for step in STEPS]
    if unknown := sorted({*(args.only or "").split()} - {*names}):
        parser.error(f"--only: there is no step {unknown[0]}; the steps are {', '.join(names)}")
    return reported(lambda: run(args), args.json, passes)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Take all steps, one after the other; one that fails does not end the run."""
    failures = []
    with Stage(args) as stage:
        for step in STEPS:
            if (step is steps.ten_pages and args.quick) or (args.only and step.__name__ not in args.only.split()):
                continue
            name = step.__name__.replace("_", " ")
            try:
                step(stage)
            except Exception as error:  # also a page whose elements are not those that a step expects
                failures.append(f"{name}: {type(error).__name__}: {error}"[:2_000])
                stage.say(failures[-1])
            stage.say(
                f"{name}: {stage.values} rows compared, {len(stage.differences)} differ; {len(failures)} failures"
            )
    return report(stage, failures)


def report(stage: Stage, failures: Sequence[str]) -> dict[str, Any]:
    """Return the result of the steps: figures, and examples of errors."""
    troubles = stage.chromium.troubles
    lines_by_figure: dict[str, Sequence[str]] = {
        "failed": failures,
        "different_values": stage.differences,
        "console_errors": troubles.console_errors,
        "foreign_requests": troubles.foreign_requests,
        "violations": troubles.violations,
        "active_elements": [*stage.active, *troubles.executions],
    }
    return {
        **{name: len(lines) for name, lines in lines_by_figure.items()},
        "screenshots": len(stage.pictures),
        "screenshots_least": 0 if stage.args.only else SCREENSHOTS,
        "compared_rows": stage.values,
        **stage.figures,
        "devices": stage.args.devices,
        "rate": stage.args.rate,
        "chromium": stage.version,
        "pictures": stage.pictures,
        "examples": {name: lines[:10] for name, lines in lines_by_figure.items() if lines},
    }


def passes(report: Mapping[str, Any]) -> bool:
    """Whether a run has found nothing wrong."""
    return not any(report[name] for name in ZERO) and report["screenshots"] >= report["screenshots_least"]


if __name__ == "__main__":
    sys.exit(main())

"""The fault runner's command line.

    python -m load.faults [--id F1 ...] [--only CAUSE] [--seed 7] [--inputs 2] [--update-every 5s] [--quick] [--times N]
                          [--for 2h] [--json FILE] [--folder FOLDER]

Without --id all rows are played, in turn. Exit status 0 only when no rule is violated in any.
"""

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from load.faults.checker import check
from load.faults.figures import figures
from load.faults.history import read
from load.faults.row import Row, find, play, rows
from load.fleet.options import seconds_of
from load.report import print_error, stopped
from load.servers.machine import check_machine
from load.testbed import ROOT
from service.errors import SetupError, TidemarkError

SHOWN = 10
IN_PARTS = {"soak", "batches"}
"""Rows that --keep goes on with."""
WITH_PARTS = {"causes"}
"""Rows of which --only plays a part."""
PARTIAL = {"cause", "played"}
"""Rules that judge a part of a row."""


def report(row: Row, seed: int, **options: Any) -> dict[str, Any]:
    """Play a row with the options of `play`, check its history, print the verdict; return what goes to the JSON.

    With the option `only` only the rules in PARTIAL judge.
    """
    began, setup = time.monotonic(), row.setup
    run, measured = play(row, seed, **options)
    path = run.history.path
    violations = [each for each in check(read(path)) if not options.get("only") or each.rule in PARTIAL]
    all_figures = {
        **figures(read(path)),
        "stale_refused": run.stale_refused,
        "mismatches": None if run.verdict is None else run.verdict.mismatches,
        "compared": {} if run.verdict is None else run.verdict.compared,
        "rejects_repeated": None if run.verdict is None else run.verdict.duplicates,
        **measured,
    }
    seconds = round(time.monotonic() - began, 1)
    verdict = "VIOLATED" if violations else "OK"
    print(f"{setup.id}: {verdict}: seed {seed}, {len(violations)} violations, {seconds:.0f} s")
    for violation in violations[:1]:
        print(f"  the first violation: {violation.rule}: {violation.text}")
    for name, value in all_figures.items():
        print(f"  {name}: {value}")
    print(flush=True)
    return {
        "id": setup.id,
        "seed": seed,
        "violations": len(violations),
        **{name: measured[name] for name in ("causes", "named_rightly") if name in measured},
        "examples": [f"{violation.rule}: {violation.text}" for violation in violations[:SHOWN]],
        "figures": all_figures,
        "run": {
            "title": setup.title,
            "short": options["short"],
            "rate": setup.rate,
            "devices": setup.devices,
            "inputs": setup.inputs,
            "update_every": setup.update_every,
            "supervised": run.is_supervised,
            "seconds": seconds,
            "history": str(path),
            "machine": platform.platform(),
            "cores": os.cpu_count(),
            "versions": {name: version(name) for name in ("tidemark-service", "pyspark", "confluent-kafka", "redis")},
        },
    }


def main(argv: Sequence[str] | None = None) -> int:
    """0 when nothing is violated, 1 when something is, an error's own status when nothing could be played."""
    parser = argparse.ArgumentParser(prog="make faults", description="Faults, played against the whole service.")
    parser.add_argument("--id", nargs="+", help=f"rows: {', '.join(rows())}; all of them without it")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--quick", dest="short", action="store_true", help="as few repetitions as make sense")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="of the row `causes`: those whose names have these words"
    )
    parser.add_argument("--times", type=int, metavar="N", help="how often a row repeats its main fault")
    parser.add_argument("--for", dest="seconds", type=seconds_of, metavar="2h", help="how long a soak goes on")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--folder", type=Path, help="where all files go (default: .build/faults/ID); it is emptied without --keep"
    )
    parser.add_argument(
        "--keep", action="store_true", help="a soak in parts: go on with what the last part has left, and leave it"
    )
    parser.add_argument("--inputs", type=int, choices=(1, 2), help="the second one has arrays of JSON")
    parser.add_argument("--update-every", metavar="5s", help="how long open values wait, also those of a backlog")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        chosen = [find(each) for each in args.id] if args.id else list(rows().values())
        given = {name: getattr(args, name) for name in ("inputs", "update_every") if getattr(args, name)}
        chosen = [replace(each, setup=replace(each.setup, **given)) for each in chosen]
        options = {"short": args.short, "times": args.times, "seconds": args.seconds, "folder": args.folder}
        options |= {"only": " ".join(args.only), "keep": args.keep}
        for option, able in (("keep", IN_PARTS), ("only", WITH_PARTS)):
            unable = [each.setup.id for each in chosen if each.setup.id not in able]
            if getattr(args, option) and unable:
                what = f"--{option} is for the rows {' and '.join(sorted(able))}, not for {', '.join(unable)}"
                raise SetupError(what, remedy=f"Leave --{option} out, or name a row by --id")
        check_machine(folder=ROOT)
        reports = [report(row, args.seed, **options) for row in chosen]
    except TidemarkError as error:
        return print_error(error)
    except KeyboardInterrupt:
        return stopped()
    total = sum(each["violations"] for each in reports)
    document = reports[0] if len(reports) == 1 else {"seed": args.seed, "violations": total, "rows": reports}
    if args.json:
        args.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if len(reports) > 1:
        print("\n".join(f"{each['id']:7} {each['violations']} violations" for each in reports))
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())

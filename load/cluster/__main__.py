"""The command line of the plays on several hosts.

    python -m load.cluster [--only driver_moved] [--only hdfs] [--seed 7] [--quick] [--times N] [--json FILE] [--folder FOLDER]

Exit status 0 only when no rule is violated in any play. A report that exists in FILE is continued: a play replaces its own part.
"""

import argparse
import json
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from load.cluster import namespaces, stores
from load.cluster.rows import rows
from load.faults.__main__ import report
from load.faults.row import Row
from load.report import machine, print_error, stopped
from load.servers.machine import check_machine
from load.testbed import ROOT
from service.errors import TidemarkError


def main(argv: Sequence[str] | None = None) -> int:
    """0 when nothing is violated, 1 when something is, an error's own status when nothing could be played."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    plays = rows()
    names = (*plays, *stores.STORES)
    parser = argparse.ArgumentParser(prog="make cluster", description="The service on several hosts that fail.")
    parser.add_argument(
        "--only", choices=names, action="append", help="a play or a store; may be repeated; all of them without it"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--quick", dest="short", action="store_true", help="shorter outages, fewer repetitions")
    parser.add_argument("--times", type=int, metavar="N", help="how often a play repeats its main fault")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--folder", type=Path, default=ROOT / ".build" / "cluster", help="a folder a play goes there")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        check_machine(folder=ROOT)
        chosen = args.only or names
        kept = tuple(name for name in stores.STORES if name in chosen)
        if kept:
            stores.prepare()  # here is a network
        namespaces.enter("load.cluster", arguments)
        namespaces.Network().start()
        document: dict[str, Any] = {**_former(args.json), "seed": args.seed, "machine": machine()}

        def played(row: Row, folder: Path) -> dict[str, Any]:
            made = report(row, args.seed, short=args.short, times=args.times, folder=folder)
            return {**made["figures"], "violations": made["violations"], "examples": made["examples"]}

        for name in filter(plays.get, chosen):
            document[name] = played(plays[name], args.folder / name)
            _write(args.json, document, plays)
        of_stores = document.get("checkpoint_stores", {})
        for document["checkpoint_stores"] in stores.measure(kept, args.folder / "stores", played, of_stores):
            _write(args.json, document, plays)
    except TidemarkError as error:
        return print_error(error)
    except KeyboardInterrupt:
        return stopped()
    violations = _write(args.json, document, plays)
    print("\n".join(f"{name:18} {count} violations" for name, count in violations.items()))
    return 1 if sum(violations.values()) else 0


def _former(path: Path | None) -> dict[str, Any]:
    """Return the report of an earlier run, which this one goes on with; {} without one."""
    if path is None or not path.exists():
        return {}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def _write(path: Path | None, document: dict[str, Any], plays: Collection[str]) -> dict[str, int]:
    """Write the report after each play: a run of all takes an hour. Return the number of violations of each."""
    judged = {**{name: document[name] for name in plays if name in document}, **document.get("checkpoint_stores", {})}
    violations = {name: int(each["violations"]) for name, each in judged.items()}
    document["violations"] = sum(violations.values())
    if path is not None:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return violations


if __name__ == "__main__":
    sys.exit(main())

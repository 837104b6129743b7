"""The command line of the demo.

    python -m load.demo --for 60s [--rate 5000] [--devices 10000] [--seed 7] [--json FILE] [--keep]

Exit status: 0 if nothing differs, 1 if something differs, an error's own status, 130 after Ctrl-C.
"""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from load.demo.run import FOLDER, Demo
from load.fleet.options import seconds_of
from load.report import print_error
from load.servers.machine import check_machine
from service.errors import TidemarkError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidemark demo", description="The service on embedded servers, checked.")
    parser.add_argument("--for", dest="seconds", type=seconds_of, default=60.0, metavar="60s", help="time of the load")
    parser.add_argument("--rate", type=float, default=5_000.0, help="readings a second")
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--master", default="local[*]", help="Spark's master")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the summary")
    parser.add_argument("--keep", action="store_true", help="then start all parts again and run until Ctrl-C")
    args = parser.parse_args(argv)
    try:
        demo = Demo(args)
    except ValueError as problem:  # of a fleet that cannot be
        parser.error(str(problem))
    for each in (signal.SIGTERM, signal.SIGINT):  # a shell's background job ignores SIGINT
        signal.signal(each, signal.default_int_handler)
    status = 130
    try:
        check_machine(folder=FOLDER.parent)
        with demo:
            summary = demo.run()
            status = 0 if summary.ok else 1
            if args.json:
                args.json.write_text(json.dumps(asdict(summary), indent=2) + "\n", encoding="utf-8")
            demo.report(summary)
            if args.keep:
                demo.keep()
    except TidemarkError as error:
        return print_error(error)
    except KeyboardInterrupt:
        print("stopped" if status != 130 else "stopped; nothing was checked", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

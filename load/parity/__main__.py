"""Compare an hour of the stream with backfills, and a year of it with SQL.

    python -m load.parity [--only hour | year] [--seed 7] [--devices 500] [--readings 200000] [--meters 12] [--json F]

    hour       an hour of the stream against `tidemark backfill` from Kafka and from Parquet          load/parity/hour.py
    year       local days and months of meters, by the stream and by a backfill, against SQL          load/parity/year.py

`missing`, `duplicates` and `differences` are the sums of all. Exit status 0 if all are 0.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from load.parity import hour, year
from load.report import machine, options, reported

DIFFERENCES = ("missing", "duplicates", "differences")


def main(argv: Sequence[str] | None = None) -> int:
    """Compute, compare, report; return the exit status."""
    parser = options("make parity", "The stream against backfills and SQL.")
    parser.add_argument("--only", choices=("hour", "year"))
    parser.add_argument("--devices", type=int, default=500)
    parser.add_argument("--readings", type=int, default=200_000)
    parser.add_argument("--meters", type=int, default=12)
    args = parser.parse_args(argv)
    return reported(lambda: report(args), args.json, lambda made: not any(made[name] for name in DIFFERENCES))


def report(args: argparse.Namespace) -> dict[str, Any]:
    """Return the report."""
    parts: dict[str, Mapping[str, Any]] = {}
    if args.only in {None, "hour"}:
        parts["hour"] = hour.report(args.seed, args.devices, args.readings)
    if args.only in {None, "year"}:
        parts["year"] = year.report(args.seed, args.meters)
    sums = {name: sum(part[name] for part in parts.values()) for name in DIFFERENCES}
    return {"machine": machine(), **parts, **sums}


if __name__ == "__main__":
    sys.exit(main())

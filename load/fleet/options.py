"""The generator's command line: its options, and the fleet that they ask for."""

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path

from load.fleet.encode import SCHEMAS
from load.fleet.fleet import Fleet, FleetSettings, with_outsiders

_LENGTH = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """ "500ms", "60s", "20m", "2h" or a bare number of seconds."""
    match = _LENGTH.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time, such as 500ms, 60s, 20m, 2h or 60")
    return float(match[1]) * _SECONDS[match[2]]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of `argv` (None: the program's own); ends the program with its usage when they do not fit."""
    parser = argparse.ArgumentParser(
        prog="python -m load.fleet.generator", description="Sends a seeded fleet's readings to a topic."
    )
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--rate", type=float, default=0.0, help="records a second; 0: what the devices do by themselves"
    )
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--for", dest="seconds", type=seconds_of, default=math.inf, metavar="60s")
    parser.add_argument("--format", choices=("avro", "json", "protobuf"), default="avro")
    parser.add_argument("--array", type=int, default=1, metavar="N", help="records of JSON are arrays of N readings")
    parser.add_argument("--schemas", type=Path, default=SCHEMAS, metavar="FOLDER", help="holds 1.avsc, 2.avsc")
    parser.add_argument("--evolved", type=float, default=0.0, metavar="SHARE", help="devices that write schema 2")
    parser.add_argument("--partitions-by", default="device", metavar="device|spread|NUMBER")
    parser.add_argument("--outsiders", default="0.01", metavar="off|SHARE", help="and half as many duplicates")
    parser.add_argument("--max-delay", type=seconds_of, default=2.0, metavar="2s", help="longest delay of a reading")
    parser.add_argument(
        "--dropouts", type=float, default=0.1, metavar="SHARE", help="devices that fall silent at times"
    )
    parser.add_argument("--dropout", type=seconds_of, default=180.0, metavar="3m", help="for how long")
    parser.add_argument("--dropout-every", type=seconds_of, default=600.0, metavar="10m", help="and how often")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="write the reference table as SQLite first")
    args = parser.parse_args(argv)
    if args.array > 1 and args.format != "json":
        parser.error("--array needs --format json")
    return args


def options_of(settings: FleetSettings) -> list[str]:
    """The options of a generator whose fleet has these settings, without the rate; its outsiders are the usual ones, or none."""
    outsiders = [] if settings.shares else ["--outsiders", "off"]
    options = {
        "--devices": settings.devices,
        "--max-delay": f"{settings.max_delay_ms}ms",
        "--dropouts": settings.dropout_share,
        "--dropout": f"{settings.dropout_ms}ms",
        "--dropout-every": f"{settings.dropout_every_ms}ms",
        "--evolved": settings.evolved,
    }
    return [*outsiders, *(str(word) for option in options.items() for word in option)]


def fleet_of(args: argparse.Namespace) -> Fleet:
    """The fleet that the options describe; raises ValueError when there can be none."""
    share = 0.0 if args.outsiders == "off" else float(args.outsiders)
    shares = with_outsiders(share)
    settings = FleetSettings(
        devices=args.devices,
        rate=args.rate,
        max_delay_ms=int(args.max_delay * 1000),
        dropout_share=args.dropouts,
        dropout_ms=int(args.dropout * 1000),
        dropout_every_ms=int(args.dropout_every * 1000),
        evolved=args.evolved,
        shares=shares,
    )
    return Fleet(args.seed, settings)

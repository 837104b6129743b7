"""Writes a fleet's reference table into PostgreSQL.

python -m load.fleet.postgres --url postgresql://USER@HOST/DATABASE [--devices 10000] [--seed 7]
"""

import argparse
import sys
from collections.abc import Sequence

import psycopg

from load.fleet.fleet import REFERENCE_TABLE, Fleet, FleetSettings, reference_rows
from service.errors import SetupError


def write_reference_postgres(url: str, fleet: Fleet) -> None:
    """Write the reference table into a running PostgreSQL; its rows are replaced in one transaction. Raises SetupError."""
    columns = tuple(list(column) for column in zip(*reference_rows(fleet), strict=True))
    fill = b"insert into devices select * from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[])"
    try:
        with psycopg.connect(url) as connection:
            connection.execute(REFERENCE_TABLE.replace("table", "table if not exists", 1).encode())
            connection.execute("delete from devices")
            connection.execute(fill, columns)
    except psycopg.Error as error:
        what = f"The reference table cannot be written: {str(error).strip()}"
        raise SetupError(what, remedy="Check the URL, and that its user may create tables.") from error


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; ends the program with its usage when they do not fit."""
    parser = argparse.ArgumentParser(prog="python -m load.fleet.postgres", description="Writes the table of devices.")
    parser.add_argument("--url", required=True, metavar="postgresql://USER@HOST/DATABASE")
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table; return 0, or the status of an error."""
    args = arguments(argv)
    try:
        write_reference_postgres(args.url, Fleet(args.seed, FleetSettings(devices=args.devices)))
    except SetupError as error:
        print(f"tidemark: {error.code}: {error}", file=sys.stderr)
        return error.status
    print(f"{args.devices} devices")
    return 0


if __name__ == "__main__":
    sys.exit(main())

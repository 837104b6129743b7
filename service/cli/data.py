"""Commands about the input: schemas, profile."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli.command import Config, app, command, group
from service.cli.output import report
from service.printing import say

schemas = group("schemas", app, "Try new Avro schemas, or records of JSON.")


@command(schemas, "check", example="tidemark schemas check 3.avsc")
def check(
    config: Config,
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="New Avro schemas, or sample records of JSON.")],
) -> int:
    """Try new Avro schemas against those in use and against [input], before anyone writes with them.

    With input.format = "json", each file is a record, or has a record on each line.
    """
    from service import settings
    from service.commands import compatibility

    return report(compatibility.check(settings.load(config), files))


@command(app, "profile", example="tidemark profile --readings 50000 --out readings.json")
def profile(
    config: Config,
    readings: Annotated[int, typer.Option(min=1, metavar="N", help="Of so many records.")] = 20_000,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="quality.expectations, else schemas/readings.expectations.json in the folder of the settings",
            help="Write the expectations here.",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing file.")] = False,
) -> None:
    """Draw expectations of the readings from the newest records of the topics."""
    from service import settings
    from service.quality import profile

    loaded = settings.load(config)
    path = out or loaded.quality.expectations or config.parent / profile.DEFAULT
    profile.profile(loaded, path.absolute(), readings, say, replace=replace)

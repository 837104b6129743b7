"""Commands about the input: schemas, profile."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli.command import Config, app, command, group, load
from service.cli.output import report
from service.printing import say

schemas = group("schemas", app, "Try new Avro schemas, or records of JSON.", "Inputs")


@command(schemas, "check", example="tidemark schemas check 3.avsc")
def check(
    config: Config,
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="New Avro schemas, or sample records of JSON.")],
    name: Annotated[
        str | None, typer.Option("--input", metavar="NAME", help="The input whose records they are, of several.")
    ] = None,
) -> int:
    """Try new Avro schemas against those in use and against the input, before anyone writes with them.

    With format = "json", each file is a record, or has a record on each line.
    """
    from service.commands import compatibility

    return report(compatibility.check(load(config), files, name))


@command(
    app,
    "profile",
    panel="Inputs",
    example="tidemark profile --readings 50000 --out readings.json && tidemark profile --reference",
)
def profile(
    config: Config,
    readings: Annotated[int, typer.Option(min=1, metavar="N", help="Of so many records.")] = 20_000,
    reference: Annotated[
        bool, typer.Option("--reference", help="Of the reference instead, all rows of its query.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="what the settings name, else {readings,reference}.expectations.json beside them or in schemas",
            help="Write the expectations here.",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing file.")] = False,
) -> None:
    """Draw expectations of the readings from the newest records of the topics, or of the reference."""

    loaded = load(config)
    if reference:
        from service.quality import reference_profile, suite

        named = loaded.reference.expectations if loaded.reference is not None else None
        path = out or named or suite.default_place(config.parent, reference_profile.NAME)
        reference_profile.profile(loaded, path.absolute(), say, replace=replace)
        if path != named:
            say(suite.hint("reference", config.parent, path))
        return
    from service.quality import profile, suite

    path = out or loaded.quality.expectations or suite.default_place(config.parent, profile.NAME)
    profile.profile(loaded, path.absolute(), readings, say, replace=replace)
    if path != loaded.quality.expectations:
        say(suite.hint("quality", config.parent, path))

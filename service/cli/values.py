"""Commands about the values in Redis: republish, correct, devices."""

from typing import Annotated

import typer

from service.cli.command import Config, DryRun, Json, app, command
from service.printing import document, say


@command(app, "republish", example="tidemark republish --dry-run")
def republish(config: Config, dry_run: DryRun = False) -> None:
    """Publish again all values that have not expired, by the running service if there is one."""
    from service import settings
    from service.commands import republish

    republish.by_hand(settings.load(config), say=say, dry=dry_run)


@command(app, "correct", example="tidemark correct --since 26h")
def correct(
    config: Config,
    since: Annotated[str, typer.Option(metavar="TIME", help="Those that the broker got since, such as 2h.")],
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Those that the broker got before.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also those corrected before: for a new prefix.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Put late readings that were rejected into the final values they belong to."""
    from service import settings
    from service.commands.rejects import span
    from service.recompute import correct

    since_ms, until_ms = span(since, until)
    correct.correct(settings.load(config), since_ms, until_ms, say=say, again=again, dry=dry_run)


@command(app, "devices", example="tidemark devices --skewed")
def devices(
    config: Config,
    skewed: Annotated[bool, typer.Option("--skewed", help="Those whose clocks are ahead.")] = False,
    json: Json = False,
) -> None:
    """List devices that need somebody to look at them."""
    if not skewed:
        message = "--skewed is missing"
        raise typer.BadParameter(message)
    from service import settings
    from service.commands import devices

    listed = devices.skewed(settings.load(config).redis)
    for line in [document(listed)] if json else devices.table(listed):
        say(line)

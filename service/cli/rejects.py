"""`tidemark rejects list|show|replay`."""

import json as json_format
from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.command import Config, DryRun, Json, app, command, group

rejects = group("rejects", app, "What was not admitted: list it, show it, send it again.", "Every day")


def _reasons() -> list[str]:
    import schemas

    form = json_format.loads((Path(schemas.__file__).parent / "reject.json").read_text(encoding="utf-8"))
    reasons: list[str] = form["properties"]["reason"]["enum"]
    return reasons


def _known(context: typer.Context, chosen: list[str] | None) -> list[str]:
    reasons = [] if context.resilient_parsing or not chosen else _reasons()
    for reason in chosen or ():
        if reasons and reason not in reasons:
            raise typer.BadParameter(f"{reason!r} is not one of {', '.join(reasons)}")
    return chosen or []


Places = Annotated[
    list[str] | None,
    typer.Argument(metavar="PLACE", help="A record's topic[partition]@offset, or topic[partition]@first-last."),
]
Reasons = Annotated[
    list[str] | None,
    typer.Option(
        "--reason",
        metavar="REASON",
        callback=_known,
        autocompletion=_reasons,
        help="With this reason; may be repeated.",
    ),
]
Device = Annotated[
    str | None, typer.Option(metavar="ID", help="Of this device, or with this key where the device is unknown.")
]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="That were rejected since, such as 2026-11-20T08:00 or 2h.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="That were rejected before.")]
State = Annotated[
    Literal["correcting", "replaying", "open", "corrected", "replayed"] | None,
    typer.Option(help="The mark that it has, open without one."),
]


@command(rejects, "list", example="tidemark rejects list --since 1h --reason out_of_range")
def list_(
    config: Config,
    at: Places = None,
    reason: Reasons = None,
    device: Device = None,
    since: Since = None,
    until: Until = None,
    state: State = None,
    lines: Annotated[
        int | None,
        typer.Option("-n", metavar="N", min=0, show_default="50, all with --json", help="The newest N of them."),
    ] = None,
    json: Json = False,
) -> int:
    """Print a line for each reject, and how many there are."""
    from service.commands import progress, rejects

    with progress.bar("records") as watch:
        chosen = rejects.Selection(config, at, reason, device, since, until, state, watch=watch)
        return rejects.list_(chosen, lines, as_json=json)


@command(rejects, "show", example="tidemark rejects show 'readings[2]@1207'")
def show(
    config: Config,
    at: Places = None,
    reason: Reasons = None,
    device: Device = None,
    since: Since = None,
    until: Until = None,
    state: State = None,
    json: Json = False,
) -> int:
    """Print everything that is known of some rejects: decoded fields, bytes, reason."""
    from service.commands import rejects

    return rejects.show(rejects.Selection(config, at, reason, device, since, until, state), as_json=json)


@command(rejects, "replay", example="tidemark rejects replay --since 1h --set unit=C --dry-run")
def replay(
    config: Config,
    at: Places = None,
    reason: Reasons = None,
    device: Device = None,
    since: Since = None,
    until: Until = None,
    state: State = None,
    assign: Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Mend a field.")] = None,
    value: Annotated[Path | None, typer.Option(metavar="FILE", help="Mend all bytes, of a single reject.")] = None,
    dry_run: DryRun = False,
    rate: Annotated[int | None, typer.Option(min=1, metavar="N", help="Send at most N records a second.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Also where more than 10000 are chosen.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Send also what would be rejected again.")] = False,
) -> int:
    """Send rejects through admission again, each once."""
    from service.commands import rejects

    chosen = rejects.Selection(config, at, reason, device, since, until, state)
    return rejects.replay_(chosen, assign or [], value, dry=dry_run, rate=rate, yes=yes, force=force)

"""Commands about the values in Redis: republish, correct, backfill, devices, sql."""

import os
import sys
from typing import Annotated, Literal

import typer

from service.cli.command import Config, DryRun, Json, app, command, load
from service.printing import document, say


@command(app, "republish", panel="The past", example="tidemark republish --dry-run")
def republish(config: Config, dry_run: DryRun = False) -> None:
    """Publish again all values that have not expired, by the running service if there is one."""
    from service.commands import republish

    republish.by_hand(load(config), say=say, dry=dry_run)


@command(app, "correct", panel="The past", example="tidemark correct --since 26h")
def correct(
    config: Config,
    since: Annotated[str, typer.Option(metavar="TIME", help="Those that the broker got since, such as 2h.")],
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Those that the broker got before.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also those corrected before: for a new prefix.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Put late readings that were rejected into the final values they belong to."""
    from service.commands.rejects import span
    from service.recompute import correct

    since_ms, until_ms = span(since, until)
    correct.correct(load(config), since_ms, until_ms, say=say, again=again, dry=dry_run)


@command(app, "backfill", panel="The past", example="tidemark backfill --from 2026-11-20T08:00 --to 2026-11-20T09:00")
def backfill(
    config: Config,
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="Values that begin since, such as 26h.")],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="Values that begin before.")],
    view: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Windows of this view only, no sessions; may be repeated.")
    ] = None,
    source: Annotated[
        Literal["kafka", "parquet", "avro", "jsonl"], typer.Option(help="Where the records are; files need PATH.")
    ] = "kafka",
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="Archive of the topics.", show_default=False)
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, show_default="service.fill_rate", help="Read so many records a second."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Compute closed windows and sessions of the past again, from Kafka or an archive, for Redis and the outlets.

    It runs beside the service, and goes on where it was cut off. Richer values in Redis stay.
    """
    from service.commands import progress
    from service.commands.rejects import span
    from service.recompute import backfill
    from service.recompute.archive import Place

    if (source == "kafka") != (path is None):
        message = f"{source} takes no path" if path is not None else f"{source} needs the path of an archive"
        raise typer.BadParameter(message, param_hint="--source")
    since_ms, until_ms = span(since, until, names=("--from", "--to"))
    asked = since_ms or 0, until_ms or 0
    with progress.bar("minutes") as bar:

        def watch(done_ms: int, all_ms: int) -> None:
            bar(done_ms // 60_000, all_ms // 60_000)

        given = None if path is None else Place(source, path)
        loaded = load(config)
        backfill.backfill(loaded, asked, view or (), say, watch, source=given, rate=rate, dry=dry_run)


def _utf8(text: str) -> str:
    """Return a text as it is. Raises BadParameter if its bytes were not UTF-8: Python has surrogates in their place."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter(f"{text!r} is not UTF-8: see the encoding of the terminal or the file") from error
    return text


def _attributes(chosen: list[str] | None) -> list[str]:
    for each in chosen or ():
        if "=" not in _utf8(each):
            raise typer.BadParameter(f"{each!r} is not COLUMN=VALUE")
    return chosen or []


@command(app, "devices", panel="Every day", example="tidemark devices --status offline --where site=leeds -n 20")
def devices(
    config: Config,
    status: Annotated[
        Literal["online", "quiet", "offline", "never"] | None, typer.Option(help="With this status.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE", callback=_attributes, help="With this in a reference column; may be repeated."
        ),
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", show_default=False, help="With ids that begin so.")] = "",
    after: Annotated[
        str, typer.Option(metavar="ID", show_default=False, help="Those behind this id: the next page.")
    ] = "",
    lines: Annotated[
        int | None,
        typer.Option("-n", metavar="N", min=1, show_default="50, all with --json", help="The first N of them."),
    ] = None,
    skewed: Annotated[bool, typer.Option("--skewed", help="Those whose clocks are ahead, and by how much.")] = False,
    json: Json = False,
) -> None:
    """List devices in the order of their ids: status, newest reading, reference columns."""
    from service import settings
    from service.commands import devices, progress

    limit = lines if lines is not None or json else 50
    if skewed:
        if status or where or prefix or after:
            raise typer.BadParameter("--skewed lists all of them, without --status, --where, --prefix and --after")
        listed = devices.skewed(settings.load(config).redis)
        for line in [document(listed[:limit])] if json else devices.skewed_table(listed, limit):
            say(line)
        return
    loaded = settings.load(config)
    columns = {name: value for name, _, value in (each.partition("=") for each in where or ())}
    chosen = devices.Filter(status or "", columns, os.fsencode(prefix))
    with progress.bar("keys") as watch:
        page = devices.page(loaded, chosen, os.fsencode(after), limit, watch)
    shown = loaded.reference.columns if loaded.reference is not None else ()
    if json and page.as_of is not None and not page.as_of.is_served:
        print(f"tidemark: {page.as_of}", file=sys.stderr)
    for line in [document(page.devices)] if json else devices.table(page, shown):
        say(line)


@command(
    app,
    "sql",
    panel="Every day",
    example="tidemark sql \"select key, mean from windows where view = 'site' and start >= now() - interval 10 minutes\"",
)
def sql(
    config: Config,
    question: Annotated[str, typer.Argument(metavar="SELECT", help="The question; - reads it from standard input.")],
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Ask in SQL about windows, sessions and devices in Redis, the history of an outlet, and the state in the checkpoint.

    Tables: windows (view, measure, key, start, end, count, mean, ..., final), sessions (device, start, last, state, ...),
    devices (device, status, last_seen, "ref.site", ...), history (as windows, from a Parquet outlet), state (kind, key, start,
    ...). Times are in UTC. Names with a dot need double quotes. SHOW TABLES and DESCRIBE list tables and columns.

    Only the keys that view, measure, key, device, start and "end" in a WHERE allow are read: name them where you can.

    tidemark sql "select status, count(*) from devices group by status"

    tidemark sql --csv "select * from windows where view = 'device' and key = 'pump-7'"

    tidemark sql "select device, start, count from sessions where state = 'open' order by count desc limit 10"
    """
    from service import settings
    from service.commands import extra

    if json and csv:
        raise typer.BadParameter("--json and --csv are two forms: give one")
    text = _utf8(os.fsdecode(sys.stdin.buffer.read()) if question == "-" else question)
    sql = extra.command("sql")
    sql.show(sql.ask(settings.load(config), text), "json" if json else "csv" if csv else "table")

"""Commands of a service: run, check, status, dashboard, support."""

import faulthandler
import sys
from pathlib import Path
from typing import Annotated

import typer

from service.cli.command import AnyConfig, Config, Json, app, command, required
from service.cli.log import is_debug, log
from service.cli.output import report, say_all, verdict
from service.printing import settings_file


@command(app, "run", panel="Every day", example="tidemark run tidemark.toml")
def run(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="The settings; of several, each is a pipeline."
        ),
    ] = None,
    config: AnyConfig = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark's master, local[*] if not given; spark-submit has its own --master."),
    ] = None,
) -> int:
    """Run the service until SIGTERM or SIGINT. SIGHUP makes it read the views of the settings again.

    Several files are pipelines of one process. Each has a name, a prefix, a group and a checkpoint of its own.
    """
    from functools import partial

    from service.daemon import shutdown

    shutdown.outlive_hang_ups()
    from service import settings
    from service.daemon import process

    paths = [path.absolute() for path in files or [required(config)]]
    faulthandler.enable()  # prints a traceback when a native client, of Kafka, Arrow or Redis, crashes
    load = settings.load if len(paths) == 1 else settings.load_named
    loaded = [(path, load(path)) for path in paths]
    settings.require_apart(loaded)
    for path, each in loaded:
        settings_file(path, each.service.name if len(loaded) > 1 else "")
    log(is_debug(), *(each for _, each in loaded))
    return process.run(*(process.Plan(each, partial(load, path)) for path, each in loaded), master=master)


@command(app, "check", panel="Every day", example="tidemark check --config tidemark.toml")
def check(config: Config) -> int:
    """Try every address, topic, table, schema and view that the settings name."""
    from service.commands import check as checks
    from service.commands import progress

    with progress.waiting("Kafka, Redis, the reference and the outlets are tried; Spark starts for the query's plan"):
        found = checks.check_file(config)
    status = report(found)
    say_all([verdict(found)])
    return status


@command(app, "status", panel="Every day", example="tidemark status -n 5")
def status(
    config: Config,
    json: Json = False,
    batches: Annotated[int, typer.Option("-n", metavar="N", help="The last N batches, at most 50.")] = 3,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show rates, lag, phases, rejects and what needs attention until Ctrl-C.")
    ] = False,
    every: Annotated[float, typer.Option(min=0.5, metavar="S", help="With --watch: seconds between two looks.")] = 2.0,
    strict: Annotated[bool, typer.Option("--strict", help="End with 3 if an alert fires.")] = False,
) -> int:
    """Show the running service, what is over its limit, and the next command: exit status 0 when its query runs, else 1."""
    if watch and json:
        message = "--watch and --json exclude each other; GET /status, /conditions and /metrics are for programs"
        raise typer.BadParameter(message)
    from service import settings
    from service.monitoring import attention
    from service.monitoring import status as state
    from service.monitoring.pages import NoServiceError
    from service.printing import document

    loaded = settings.load(config)
    metrics, name = loaded.metrics, settings.name_of(loaded, config)
    if watch:
        from service.commands import watch as terminal

        return terminal.watch(metrics, every, config, name)
    from service.commands import status as screen

    try:
        reply = state.asked(metrics, name)
        conditions = attention.asked(metrics, name)
    except NoServiceError as reason:
        print(f"tidemark: {reason}", file=sys.stderr)
        if not json:
            say_all(screen.absent(loaded, config))
        return 1
    say_all([document(reply)] if json else screen.lines(reply, conditions, batches, config))
    if reply["state"] != "running":
        return 1
    fires = strict and any(alert["state"] == "firing" for _, alert in attention.active(conditions))
    return screen.FIRING if fires else 0


@command(app, "dashboard", panel="Every day", example="tidemark dashboard --port 9500", takes_more=True)
def dashboard(context: typer.Context, config: Config) -> int:
    """Serve the dashboard page of the service; further options are those of tidemark-dashboard, see tidemark-dashboard --help."""
    from service import settings
    from service.commands import dashboard

    return dashboard.serve(settings.load(config), config, context.args)


@command(app, "support", panel="Repair", example="tidemark support --log service.log")
def support(
    config: Config,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A log of the service, - for standard input; its end is taken; may be repeated."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default="tidemark-support-TIME.tar.gz", help="Write the archive here."),
    ] = None,
) -> None:
    """Write one archive for a bug report: settings without secrets, versions, logs, metrics, status, checkpoint, Redis."""
    from service import settings
    from service.commands import support
    from service.printing import say

    support.support(settings.load(config), out or Path(support.default_name()), log or [], say)

"""Commands about the pipelines of a process, and about views."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.command import Config, DryRun, Json, app, command, group
from service.cli.output import say_all
from service.printing import document, say

queries = group("query", app, "List the pipelines of a running process, and stop and start each.", "Views")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline: `tidemark query list` has the names.")]
_Within = Annotated[float, typer.Option("--timeout", metavar="S", min=0.0, help="Seconds to wait at most.")]
STOPS_S, STARTS_S = 60.0, 300.0


@command(queries, "list", example="tidemark query list")
def list_queries(config: Config, json: Json = False) -> None:
    """List the pipelines of the process: state, epoch, last batch, last error."""
    from service import settings
    from service.commands import query

    found = query.listed(settings.load(config).metrics)
    say_all([document(found)] if json else query.table(found))


@command(queries, "stop", example="tidemark query stop minutes")
def stop(name: _Name, config: Config, timeout: _Within = STOPS_S) -> int:
    """Stop a pipeline after the batch that runs, and release its lease. It stays stopped until a start, or a new process."""
    return _reached(config, name, "stopped", timeout, "stop")


@command(queries, "start", example="tidemark query start minutes")
def start(name: _Name, config: Config, timeout: _Within = STARTS_S) -> int:
    """Start a pipeline where it stopped; one that has failed begins again at once."""
    return _reached(config, name, "running", timeout, "start")


@command(queries, "await", example="tidemark query await minutes --state running")
def await_query(
    name: _Name,
    config: Config,
    state: Annotated[
        Literal["running", "stopped"], typer.Option(metavar="STATE", help="running or stopped.")
    ] = "running",
    timeout: _Within = STARTS_S,
) -> int:
    """Wait until a pipeline runs, or has stopped: exit status 0 then, 1 after the time, or if it fails instead."""
    return _reached(config, name, state, timeout)


def _reached(config: Path, name: str, state: str, timeout_s: float, request: str = "") -> int:
    """Wait until a pipeline has a state, after the request if there is one. Return the exit status."""
    from service import settings
    from service.commands import query

    metrics = settings.load(config).metrics
    if request:
        query.request(metrics, request, name)
    return 0 if query.reached(metrics, name, state, timeout_s, say) else 1


views = group("views", app, "List the views, and change them while the service runs.", "Views")

_File = Annotated[
    Path,
    typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="TOML with [[views]], as in the settings."),
]


@command(views, "list", example="tidemark views list")
def list_views(config: Config, json: Json = False) -> None:
    """List the views of the running service, or of the settings."""
    from service import settings
    from service.commands import views

    loaded = settings.load(config)
    found = views.listed(loaded, settings.name_of(loaded, config))
    for line in [document(found)] if json else views.table(found):
        say(line)


@command(views, "add", example="tidemark views add by_site.toml")
def add(config: Config, file: _File, dry_run: DryRun = False) -> int:
    """Add views to the settings file and to the running service, which computes their past from Kafka."""
    from service import settings
    from service.commands import views

    return _changed(config, views.add(config, settings.read(file)), dry_run=dry_run)


@command(views, "change", example="tidemark views change device.toml")
def change(config: Config, file: _File, dry_run: DryRun = False) -> int:
    """Change views of the same names. Another window, slide, column or filter is a new version, which is computed first."""
    from service import settings
    from service.commands import views

    return _changed(config, views.change(config, settings.read(file)), dry_run=dry_run)


@command(views, "remove", example="tidemark views remove by_site")
def remove(config: Config, name: Annotated[str, typer.Argument(metavar="NAME")], dry_run: DryRun = False) -> int:
    """Remove a view. Its keys expire by its retain."""
    from service.commands import views

    return _changed(config, views.remove(config, name), dry_run=dry_run)


def _changed(config: Path, text: str, *, dry_run: bool) -> int:
    from service import settings
    from service.commands import views

    if dry_run:
        say_all([text])
        return 0
    views.write(config, text)
    loaded = settings.load(config)
    return views.tell(loaded, say, settings.name_of(loaded, config))

"""Commands about the pipelines of a process of several: list, stop, start, await."""

from typing import Annotated, Literal

import typer

from service.cli.command import Config, Json, app, command, group
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
    return _requested(name, "stop", "stopped", config, timeout)


@command(queries, "start", example="tidemark query start minutes")
def start(name: _Name, config: Config, timeout: _Within = STARTS_S) -> int:
    """Start a pipeline where it stopped; one that has failed begins again at once."""
    return _requested(name, "start", "running", config, timeout)


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
    from service import settings
    from service.commands import query

    return 0 if query.reached(settings.load(config).metrics, name, state, timeout, say) else 1


def _requested(name: str, word: str, state: str, config: Config, timeout_s: float) -> int:
    from service import settings
    from service.commands import query

    metrics = settings.load(config).metrics
    query.request(metrics, word, name)
    return 0 if query.reached(metrics, name, state, timeout_s, say) else 1

"""How a command is added: its options in common, its example, and what becomes of its errors.

    @command(app, "check", example="tidemark check --config tidemark.toml")
    def check(config: Config) -> int:
        \"\"\"Try every address, topic, table, schema and view that the settings name.\"\"\"
        from service.commands import check as checks

Every command gets `--debug`. It returns its exit status, or raises a TidemarkError, which has one.
"""

import functools
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.log import log, report
from service.errors import TidemarkError

app = typer.Typer(
    name="tidemark",
    help="Device telemetry on Kafka, as live numbers in Redis.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  tidemark check --config tidemark.toml && tidemark run --config tidemark.toml",
)
HERE = Path("tidemark.toml")
"""The settings, if neither --config nor TIDEMARK_CONFIG names a file."""


def _default() -> Path | None:
    return HERE if HERE.exists() else None


def required(path: Path | None) -> Path:
    """Return the file of the settings, HERE if none is named. Raises BadParameter if there is none."""
    path = path or _default()
    if path is None:
        message = f"is missing, TIDEMARK_CONFIG is not set, and there is no ./{HERE}"
        raise typer.BadParameter(message, param_hint="'--config'")
    return path


def _required(context: typer.Context, path: Path | None) -> Path | None:
    return path if context.resilient_parsing else required(path)


def _option(**more: Any) -> Any:
    return typer.Option(
        "--config", metavar="FILE", envvar="TIDEMARK_CONFIG", show_default=str(HERE), help="The settings.", **more
    )


Config = Annotated[Path, _option(default_factory=_default, callback=_required)]
AnyConfig = Annotated[Path | None, _option()]
"""The same, for a command that takes the settings in another way, too; see `required`."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
_DEBUG = inspect.Parameter(
    "debug",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--debug", help="Log more, and the traceback of an error.")],
)


def group(name: str, parent: typer.Typer, help_text: str) -> typer.Typer:
    """Return a new group of commands, `tidemark NAME COMMAND`."""
    made = typer.Typer(help=help_text, no_args_is_help=True)
    parent.add_typer(made, name=name)
    return made


def command(
    app: typer.Typer, name: str, *, example: str, takes_more: bool = False
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Add a function as a command. Its docstring is the help text, its parameters are the options; the result is the status.

    With `takes_more` the command line may have options of another program: they are in the `args` of the typer.Context.
    """
    more = {"allow_extra_args": True, "ignore_unknown_options": True} if takes_more else {}

    def add(function: Callable[..., int | None]) -> Callable[..., int | None]:
        @functools.wraps(function)
        def run(*, debug: bool = False, **arguments: Any) -> int:
            return _guarded(lambda: function(**arguments), debug)

        signature = inspect.signature(function)
        run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), _DEBUG])  # type: ignore[attr-defined]
        run.__annotations__ = {**function.__annotations__, "debug": _DEBUG.annotation}
        app.command(name, epilog=f"Example:  {example}", context_settings=more)(run)
        return function

    return add


def _guarded(run: Callable[[], int | None], debug: bool) -> int:
    """Run a command and return its exit status. An error is written to standard error."""
    log(debug)
    try:
        return run() or 0
    except TidemarkError as error:
        if debug:
            logging.getLogger(__name__).exception("ended by")
        report(error)
        return error.status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output, for example `head`, has ended
        return 141

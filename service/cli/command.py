"""How a command is added: its options in common, its example, and what becomes of its errors.

    @command(app, "check", panel="Every day", example="tidemark check --config tidemark.toml")
    def check(config: Config) -> int:
        \"\"\"Try every address, topic, table, schema and view that the settings name.\"\"\"
        from service.commands import check as checks

Every command gets `--debug`. It returns its exit status, or raises a TidemarkError, which has one.
"""

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from service.cli.log import log, report
from service.errors import TidemarkError
from service.printing import settings_file

PANELS = ("Every day", "Inputs", "Views", "The past", "Repair", "Installation")
"""The headings of `tidemark --help`, in its order."""


class Panels(TyperGroup):
    """A group that lists its commands under PANELS, each with the first sentence of its text, and cuts none."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Any: the classes are private to Typer."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for name, each in self.commands.items():
            rows.setdefault(each.rich_help_panel or "Commands", []).append((name, _first_sentence(each.help or "")))  # type: ignore[attr-defined]
        for panel in (*PANELS, "Commands"):
            if panel in rows:
                with formatter.section(panel):
                    formatter.write_dl(rows[panel])


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".") + "."


def load(config: Path) -> Any:
    """Return the Settings of a file for a command that reads the topics: those that a pattern matches are named.

    Raises SettingsError, and SourceError when Kafka does not answer. Any: a command imports no settings until it runs.
    """
    from service import settings
    from service.kafka import matching

    return matching.resolved(settings.load(config))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib import metadata

        from service.version import version

        names = version(), metadata.version("pyspark"), sys.version.split()[0]
        print("tidemark {} (Spark {}, Python {})".format(*names))
        raise typer.Exit


app = typer.Typer(
    cls=Panels,
    name="tidemark",
    help="Device telemetry on Kafka, as live numbers in Redis.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich's tables cut words that are longer than their column
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  tidemark check --config tidemark.toml && tidemark run --config tidemark.toml",
)


@app.callback()
def _all(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Print the versions of Tidemark, Spark and Python.",
        ),
    ] = False,
) -> None:
    """Device telemetry on Kafka, as live numbers in Redis."""


HERE = Path("tidemark.toml")
"""The settings, if neither --config nor TIDEMARK_CONFIG names a file."""
INIT = "`tidemark init --bootstrap HOST:PORT --topic NAME`"


def _default() -> Path | None:
    return HERE if HERE.exists() else None


def required(path: Path | None) -> Path:
    """Return the file of the settings, HERE if none is named. Raises BadParameter if there is none."""
    path = path or _default()
    if path is None:
        message = f"is missing, TIDEMARK_CONFIG is not set, and there is no ./{HERE}. {INIT} writes one"
        raise typer.BadParameter(message, param_hint="'--config'")
    settings_file(path)
    return path


def _required(context: typer.Context, path: Path | None) -> Path | None:
    return path if context.resilient_parsing else required(path)


def _option(**more: Any) -> Any:
    return typer.Option(
        "--config", metavar="FILE", envvar="TIDEMARK_CONFIG", show_default=str(HERE), help="The settings.", **more
    )


Config = Annotated[Path, _option(default_factory=_default, callback=_required, is_eager=True)]
"""Eager: that there are no settings is said before what else the command line lacks."""
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


def group(name: str, parent: typer.Typer, help_text: str, panel: str) -> typer.Typer:
    """Return a new group of commands, `tidemark NAME COMMAND`, listed under `panel`, one of PANELS."""
    made = typer.Typer(cls=Panels, help=help_text, no_args_is_help=True, rich_markup_mode=None)
    parent.add_typer(made, name=name, rich_help_panel=panel)
    return made


def command(
    app: typer.Typer, name: str, *, example: str, panel: str | None = None, takes_more: bool = False
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Add a function as a command. Its docstring is the help text, its parameters are the options; the result is the status.

    `panel` is one of PANELS, for a command of `tidemark` itself.
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
        app.command(name, epilog=f"Example:  {example}", context_settings=more, rich_help_panel=panel)(run)
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

"""Commands about the input: init, try, schemas, profile."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from service.cli.command import HERE, Config, Json, app, command, group, load
from service.cli.output import report
from service.printing import say

Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help="An option of librdkafka, for [kafka.options]; may be repeated."
    ),
]


@command(app, "init", panel="Inputs", example="tidemark init --bootstrap localhost:9092 --topic readings")
def init(
    bootstrap: Annotated[str, typer.Option(metavar="HOST:PORT", help="Kafka's brokers, with commas between.")],
    topic: Annotated[list[str], typer.Option(metavar="NAME", help="An input topic; may be repeated.")],
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", envvar="TIDEMARK_CONFIG", help="Write the settings here.")
    ] = HERE,
    redis: Annotated[str, typer.Option(metavar="URL", help="Redis, without a password.")] = "redis://127.0.0.1:6379/0",
    redis_password_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Has Redis' password.")] = None,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Kafka's user, SCRAM-SHA-512 over TLS.")] = None,
    password_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Has the password of --user.")] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Certificates to trust, for TLS to Kafka.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(metavar="PEM", help="A certificate of your own.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="PEM", help="The key of --certificate.")] = None,
    option: Options = None,
    schemas: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Avro schemas of the records, <id>.avsc; not for JSON.")
    ] = None,
    registry: Annotated[str | None, typer.Option(metavar="URL", help="The registry of the records' schemas.")] = None,
    registry_user: Annotated[str | None, typer.Option(metavar="NAME", help="The registry's user.")] = None,
    registry_password_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Has its password.")] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="URL", help="JDBC URL of a database with facts about devices; needs --query.")
    ] = None,
    query: Annotated[str | None, typer.Option(metavar="SQL", help="Its rows: a device each.")] = None,
    reference_user: Annotated[str | None, typer.Option(metavar="NAME", help="The database's user.")] = None,
    reference_password_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Has its password.")] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Of a second pipeline: its name, Redis prefix, Kafka group, checkpoint folder."
        ),
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, metavar="N", help="Of metrics and status.")] = None,
    records: Annotated[int, typer.Option("-n", min=1, max=100_000, metavar="N", help="Look at N records.")] = 5_000,
    yes: Annotated[bool, typer.Option("--yes", help="Write without asking.")] = False,
) -> None:
    """Look at a topic and write a short settings file for it: device id, event time, measures, sessions, views.

    A file that exists is not replaced. It is shown first, with what was seen. What the sample cannot tell is a comment in it.
    """
    from service.commands import init, places, progress

    if (reference is None) != (query is None):
        message = "give both or neither: --reference names the database, --query its rows"
        raise typer.BadParameter(message, param_hint="--reference")
    if schemas is not None and registry is not None:
        raise typer.BadParameter("give one of --schemas and --registry", param_hint="--schemas")
    folder = config.absolute().parent
    tls = {"ca_file": ca_file, "certificate": certificate, "key": key}
    kafka = {"bootstrap": bootstrap, "topics": topic, "group": name, "user": user} | _files(
        folder, password_file=password_file, **tls
    )
    if option:
        kafka["options"] = _options(option)
    _check_address("--redis", redis)
    _check_address("--registry", registry)
    _check_address("--reference", reference)
    with progress.bar("records") as watch:
        request = places.Request(
            config,
            _given(kafka),
            _given({"url": redis, "prefix": name, **_files(folder, password_file=redis_password_file)}),
            records,
            watch,
            _given({"name": name, "checkpoint": f"{name}.checkpoint" if name else "checkpoint"}),
            _given({"port": port}),
            str(_files(folder, schemas=schemas)["schemas"]) if schemas is not None else None,
            _login(folder, {"url": registry}, registry_user, registry_password_file),
            _login(folder, {"url": reference, "query": query}, reference_user, reference_password_file),
        )
        init.init(request, lambda question: yes or _agrees(question))


@command(app, "try", panel="Inputs", example="tidemark try --config tidemark.toml -n 1000")
def try_(
    config: Config,
    records: Annotated[int, typer.Option("-n", min=1, max=100_000, metavar="N", help="Try N records.")] = 1_000,
    json: Json = False,
) -> None:
    """Show what would become of the newest records: admitted, rejects with reasons, windows, sessions. Nothing is written."""
    from service.commands import progress, trial
    from service.printing import document

    loaded = load(config)
    with progress.waiting("Spark starts, and decodes the newest records"):
        tried = trial.trial(loaded, records)
    for line in [document(tried.document())] if json else trial.lines(loaded, tried):
        say(line)


schemas_group = group("schemas", app, "Try new Avro schemas, or records of JSON.", "Inputs")


@command(schemas_group, "check", example="tidemark schemas check 3.avsc")
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


def _given(settings: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in settings.items() if value is not None}


def _login(
    folder: Path, settings: Mapping[str, object], user: str | None, password_file: Path | None
) -> dict[str, object]:
    """Return a section with a login; empty without its address."""
    if settings["url"] is None:
        return {}
    return _given({**settings, "user": user, **_files(folder, password_file=password_file)})


def _files(folder: Path, **files: Path | None) -> dict[str, object]:
    """Return paths as settings in `folder` have them: relative to it where they are below it."""
    shown: dict[str, object] = {}
    for name, path in files.items():
        if path is not None:
            whole = path.absolute()
            shown[name] = str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)
    return shown


def _check_address(option: str, url: str | None) -> None:
    """Raise BadParameter for a URL with a password."""
    from service.redaction import has_secret

    if url is not None and (":" in url.partition("://")[2].rpartition("@")[0] or has_secret(url)):
        message = f"has a password, which would be in the file: use {option}-password-file"
        raise typer.BadParameter(message, param_hint=option)


def _options(pairs: list[str]) -> dict[str, str]:
    from service.redaction import is_secret

    options = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--option")
        if is_secret(name, value):
            message = f"{name} has a secret, which would be in the file: use --password-file or --key, or write the file by hand"
            raise typer.BadParameter(message, param_hint="--option")
        options[name] = value
    return options


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        raise typer.BadParameter("standard input is no terminal to ask at, and nothing is written: give --yes")
    try:
        return typer.confirm(question, default=True)
    except typer.Abort:
        return False

"""The command line's own promises: help with an example, the settings file, colours, completion, start-up, progress bars."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer import main as typer_main

from service import printing
from service.cli import entry, log, main
from service.cli.command import PANELS, app
from service.cli.first import _options
from service.cli.output import report, verdict
from service.commands.finding import Line, ok
from service.errors import SettingsError
from tests.unit.test_cli import GOOD

SETTINGS = GOOD.replace(":hunter2@", "") + "[metrics]\nport = 1\n"


def commands() -> Iterator[tuple[str, ...]]:
    entry.load()
    root = typer_main.get_command(app)
    pending = [((name,), each) for name, each in root.commands.items()]  # type: ignore[attr-defined]
    for words, each in pending:
        inner = getattr(each, "commands", {})
        pending += [((*words, name), one) for name, one in inner.items()]
        if not inner:
            yield words


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_the_help_of_every_command_has_an_example(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("Example:") == 1
    assert f"Example: tidemark {' '.join(words)}" in text
    assert "--debug" in text


def test_help_shows_the_words_in_square_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in (
        (["views", "add"], "[[views]]"),
        (["init"], "[kafka.options]"),
        (["demo"], "tidemark-service[demo]"),
    ):
        assert main([*words, "--help"]) == 0
        assert expected in capsys.readouterr().out


def test_help_imports_no_engine_and_no_client() -> None:
    program = (
        "import sys; from service.cli import main; main(['--help']); "
        "print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for module in ("pyspark", "numpy", "pydantic", "confluent_kafka", "redis"):
        assert f"'{module}'" not in ended.stderr


def test_without_config_the_environment_names_the_settings_then_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEMARK_CONFIG", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["status"])
    assert ended.value.code == 2
    assert "TIDEMARK_CONFIG is not set, and there is no ./tidemark.toml" in capsys.readouterr().err
    (tmp_path / "tidemark.toml").write_text(SETTINGS)
    assert main(["status"]) == 1
    assert "no service answers at 127.0.0.1:1" in capsys.readouterr().err
    (tmp_path / "other.toml").write_text(SETTINGS.replace("port = 1", "port = 2"))
    monkeypatch.setenv("TIDEMARK_CONFIG", "other.toml")
    assert main(["status"]) == 1
    assert "127.0.0.1:2" in capsys.readouterr().err
    assert main(["status", "--config", "tidemark.toml"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rejects", "list", "--reason", "ugly"), "'ugly' is not one of oversized, undecodable"),
        (("rejects", "list", "--state", "lost"), "lost"),
        (("rejects", "replay", "--rate", "0"), "--rate"),
        (("profile", "--readings", "none"), "--readings"),
        (("checkpoint", "mend"), "mend"),
        (("fly",), "fly"),
        (("run", "--fast"), "--fast"),
        (("correct",), "--since"),
        (("skip",), "PLACE"),
        (("devices", "--where", "site=\udcfc"), "is not UTF-8"),
        (("sql", "select '\udcfc'"), "is not UTF-8"),
    ],
)
def test_a_wrong_option_ends_with_2_and_is_named(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--config", "x"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("--redis", "redis://u:canary@h:6379/0"), "--redis-password-file"),
        (("--redis", "redis://h:6379/0?password=canary"), "--redis-password-file"),
        (("--registry", "https://u:canary@h"), "--registry-password-file"),
        (
            ("--reference", "jdbc:postgresql://h/d?user=u&password=canary", "--query", "q"),
            "--reference-password-file",
        ),
        (("--option", "sasl.password=canary"), "--password-file"),
        (("--option", "ssl.key.pem=canary"), "--key"),
        (("--option", "sasl.oauthbearer.config=client_id=me client_secret=canary"), "by hand"),
    ],
)
def test_init_refuses_what_would_be_a_password_in_the_file(
    words: tuple[str, ...], instead: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["init", "--bootstrap", "h:1", "--topic", "t", "--config", str(tmp_path / "t.toml"), "--yes", *words])
    assert ended.value.code == 2
    message = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert instead in message
    assert "canary" not in message


def test_init_takes_options_that_say_where_a_secret_is() -> None:
    pairs = ["ssl.key.location=/keys/own.pem", "sasl.oauthbearer.token.endpoint.url=https://login.example.com/token"]
    assert list(_options(pairs)) == ["ssl.key.location", "sasl.oauthbearer.token.endpoint.url"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("views", "add", "more.toml", "--config", "none.toml"), "none.toml: the settings file cannot be read"),
        (("views", "change", "more.toml", "--config", "none.toml"), "none.toml: the settings file cannot be read"),
        (("views", "remove", "v", "--config", "none.toml"), "none.toml: the settings file cannot be read"),
        (("views", "add", "latin.toml"), "latin.toml: is not TOML"),
        (("views", "change", "latin.toml"), "latin.toml: is not TOML"),
        (("correct", "--since", "10x"), "--since: '10x' must be a number and a unit"),
        (
            ("devices", "--config", "port.toml"),
            "redis.url = ***: must be redis://user@host:6379/0 with a port up to 65535",
        ),
        (("devices", "--config", "nul.toml"), "service.checkpoint = 'a\\x00b': must not have the character NUL"),
    ],
)
def test_a_wrong_command_line_or_file_is_a_message_and_no_traceback(
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tidemark.toml").write_text(SETTINGS)
    Path("port.toml").write_text(SETTINGS.replace("redis://localhost:1", "redis://localhost:99999"))
    Path("nul.toml").write_text(SETTINGS.replace('"checkpoint"', r'"a\u0000b"'))
    Path("more.toml").write_text('[[views]]\nname = "w"\nwindow = "1 m"\n')
    Path("latin.toml").write_bytes(b'[[views]]\nname = "w"\nwindow = "1 m" # \xb0C\n')
    assert main(list(words)) == SettingsError.status
    assert message in capsys.readouterr().err


def test_sql_without_the_file_of_redis_password_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tidemark.toml").write_text(SETTINGS.replace("[metrics]", 'password_file = "none"\n[metrics]'))
    assert main(["sql", "select 1 from windows"]) == SettingsError.status
    assert "redis.password_file cannot be read" in capsys.readouterr().err


def test_reasons_are_completed_by_the_shell() -> None:
    words = "tidemark rejects list --reason un"
    environment = {"_TIDEMARK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "4"}
    ended = subprocess.run(
        [sys.executable, "-c", "from service.cli import program; program()"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.split() == ["undecodable", "unknown_schema", "unknown_device", "unreadable"]


@pytest.mark.parametrize(
    ("terminal", "no_color", "coloured"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_findings_have_colours_on_a_terminal_unless_no_color_is_set(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    no_color: str,
    coloured: bool,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    assert report([ok("kafka", "answers"), Line("redis", "fail", "\x1b[2J is away", exit_status=6)]) == 6
    said = capsys.readouterr().out
    assert ("\x1b[32mok  \x1b[0m kafka: answers" in said) == coloured
    assert ("\x1b[" in said) == coloured
    assert r"\x1b[2J is away" in said


def test_a_check_ends_with_a_verdict() -> None:
    warn, failed = Line("a", "warn", "x"), Line("b", "fail", "y", exit_status=6)
    for lines, expected in (
        ([ok("kafka", "answers")], "ready"),
        ([warn], "ready, 1 warning"),
        ([warn, warn], "ready, 2 warnings"),
        ([warn, failed, failed], "not ready, 2 failures, 1 warning"),
    ):
        assert verdict(lines) == expected


@pytest.mark.parametrize(("after_s", "shown"), [(0, True), (60, False)])
def test_a_bar_is_shown_on_a_terminal_when_the_work_takes_long(after_s: int, shown: bool) -> None:
    program = (
        f"from service.commands.progress import Bar; b = Bar('records', after_s={after_s}); b(500, 1000); b.close()"
    )
    terminal, inner = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", program], stderr=inner, env=environment, check=True)
    os.write(inner, b"the end")
    said = b""
    while not said.endswith(b"the end"):
        said += os.read(terminal, 65_536)
    os.close(inner)
    os.close(terminal)
    assert (b"500/1000" in said and b"records" in said) == shown
    elsewhere = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True)
    assert elsewhere.stderr == b"", "standard error is no terminal"


def test_commands_are_listed_in_groups(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(f"\n{panel}:\n") for panel in PANELS]
    assert places == sorted(places)
    assert "\nCommands:\n" not in text, "each command has its panel"
    with pytest.raises(SystemExit, match="2"):
        main([])
    capsys.readouterr()
    for words in ((), *commands()):
        assert main([*words, "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        assert not any("\u2026" in line or line.rstrip().endswith("...") for line in lines if "Usage" not in line), (
            words
        )


NEED_NO_SETTINGS = {"jars", "deploy", "demo", "init"}


@pytest.mark.parametrize("words", [each for each in commands() if each[0] not in NEED_NO_SETTINGS], ids=" ".join)
def test_in_an_empty_folder_every_command_names_init(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEMARK_CONFIG", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
    assert "`tidemark init --bootstrap HOST:PORT --topic NAME` writes one" in capsys.readouterr().err


def test_commands_in_messages_are_complete(tmp_path: Path) -> None:
    printing.settings_file(tmp_path / "plant 7.toml")
    shown = f"--config '{tmp_path}/plant 7.toml'"
    try:
        for text, expected in (
            ("`tidemark try` says why", f"`tidemark try {shown}` says why"),
            ("run `tidemark skip --dry-run 'r[2]@5'`, then", f"run `tidemark skip --dry-run 'r[2]@5' {shown}`, then"),
            ("`tidemark try --config FILE`", f"`tidemark try {shown}`"),
            ("`tidemark sql --help`", "`tidemark sql --help`"),
            ("`tidemark jars --group s3`", "`tidemark jars --group s3`"),
            ("`tidemark try --config x`", "`tidemark try --config x`"),
            ("tidemark is here", "tidemark is here"),
        ):
            assert printing.complete(text) == expected
        printing.settings_file(tmp_path / "two.toml", "two")
        assert printing.complete("`tidemark try`", "two") == f"`tidemark try --config {tmp_path}/two.toml`"
        record = logging.LogRecord("service", logging.INFO, "", 0, "`tidemark try`", (), None)
        assert log._Text(log.Secrets()).format(record).endswith(f"`tidemark try {shown}`")
        assert json.loads(log._Json(log.Secrets()).format(record))["message"] == f"`tidemark try {shown}`"
    finally:
        printing._files.clear()

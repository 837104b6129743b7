"""The log: its two forms, what other libraries may add, and that no secret is in it."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cli import log as command_log
from service.errors import SinkError
from service.settings import Settings
from tests import minimal

PASSWORD = "correct-horse"  # noqa: S105


def settings(folder: Path, form: str) -> Settings:
    (folder / "secret").write_text("from-a-file\n")
    options = {"sasl.oauthbearer.client.secret": "oauth-secret"}
    return minimal.settings(
        service={"log": form},
        kafka={"user": "tidemark", "password_file": folder / "secret", "options": options},
        redis={"url": f"redis://user:{PASSWORD}@localhost"},
    )


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in ("service", "state", "py4j")}
    for variable in (command_log.FORM, command_log.TRACE, command_log.TASKS):
        monkeypatch.setenv(variable, "text")
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, each in levels.items():
        logging.getLogger(name).setLevel(each)


def test_a_line_of_text_has_time_level_logger_and_message(tmp_path: Path, capsys: Any) -> None:
    command_log.log(False, settings(tmp_path, "text"))
    logging.getLogger("service.daemon.runner").info("The lease is acquired: epoch %d begins", 7)
    logging.getLogger("service.daemon.runner").debug("hidden")
    line = capsys.readouterr().err.strip()
    assert line[10] == "T"
    assert line.endswith("Z INFO service.daemon.runner: The lease is acquired: epoch 7 begins")


def test_a_json_line_is_one_object_with_the_fields_of_the_record(tmp_path: Path, capsys: Any) -> None:
    command_log.log(False, settings(tmp_path, "json"))
    logger = logging.getLogger("service.daemon.query_run")
    logger.warning("batch %d\nis late", 3, extra={"fields": {"batch": 3, "epoch": 7, "level": "not this"}})
    try:
        raise ValueError(PASSWORD)
    except ValueError:
        logger.exception("failed")
    command_log.report(SinkError("Redis is away", remedy="Start it"))
    first, second, last = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "WARNING",
        "logger": "service.daemon.query_run",
        "message": "batch 3\nis late",
        "batch": 3,
        "epoch": 7,
    }
    assert second["exception"].endswith("ValueError: ***")
    assert (last["message"], last["code"], last["status"]) == ("Redis is away. Start it", "SINK", 6)


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_of_the_settings_and_no_login_of_a_url_is_in_the_log(tmp_path: Path, capsys: Any, form: str) -> None:
    command_log.log(False, settings(tmp_path, form))
    secrets = (PASSWORD, "from-a-file", "oauth-secret")
    logging.getLogger("service").warning("%s", " ".join(secrets), extra={"fields": {"url": PASSWORD}})
    logging.getLogger("service").warning("jdbc:postgresql://me:hunter2@db/fleet and redis://:x@h")
    text = capsys.readouterr().err
    assert not [secret for secret in (*secrets, "hunter2", "me:", ":x@") if secret in text]
    assert "jdbc:postgresql://***@db/fleet and redis://***@h" in text


def test_other_libraries_log_from_warning_whatever_level_they_give_themselves(capsys: Any) -> None:
    command_log.log(False)
    other = logging.getLogger("great_expectations.data_context.types.base")
    other.setLevel(logging.INFO)
    other.info("Created temporary directory '/tmp/x' for ephemeral docs site")
    other.warning("seen")
    assert capsys.readouterr().err.count("\n") == 1


def test_a_worker_whose_connection_is_closed_prints_no_traceback() -> None:
    program = """
import traceback
from service.spark import pyworker
pyworker.hide_closed_connections()
for error in (EOFError(), BrokenPipeError(), ConnectionResetError(), ValueError("shown")):
    try:
        raise error
    except Exception:
        traceback.print_exc()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr.count("Traceback") == 1
    assert ended.stderr.endswith("ValueError: shown\n")

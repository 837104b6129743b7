"""`tidemark support`: what is in the archive, and that no secret is. Canaries stand for secrets, in all places that have them."""

import io
import json
import stat
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from load.servers.redis import Redis
from load.testbed import to_toml
from service.cli import main
from service.commands import support
from service.errors import SettingsError, SinkError
from service.settings import parse
from tests.reports import REPORT
from tests.served import served

CANARY = "CANARY"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with Redis(tmp_path_factory.mktemp("redis")) as running:
        with running.client() as client:
            client.config_set("requirepass", f"{CANARY}-redis")
        yield running


@pytest.fixture
def document(redis: Redis, tmp_path: Path) -> dict[str, Any]:
    """Settings with a canary for each secret."""
    for name in ("kafka", "registry"):
        (tmp_path / f"{name}.password").write_text(f"{CANARY}-{name}\n")
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "state" / "0").mkdir(parents=True)
    (checkpoint / "state" / "0" / "1.delta").write_bytes(b"x" * 100)
    (checkpoint / "manifest.json").write_text('{"format": 1, "application": "0.1.0"}')
    port = redis.url.rpartition(":")[2].partition("/")[0]
    return {
        "service": {"checkpoint": str(checkpoint)},
        "kafka": {
            "bootstrap": "localhost:1",
            "topics": ["readings"],
            "user": "me",
            "password_file": str(tmp_path / "kafka.password"),
            "options": {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.client.secret": f"{CANARY}-oauth",
                "sasl.oauthbearer.config": f"x={CANARY}-config",
                "ssl.key.pem": f"{CANARY}-pem",
            },
        },
        "input": {"format": "json", "measures": {"token": "env.token", "t": "t"}},
        "reference": {
            "url": f"jdbc:postgresql://db/fleet?user=me&password={CANARY}-jdbc",
            "query": f"select device_id from dblink('host=h password={CANARY}-query', 'select 1')",  # noqa: S608
            "user": "me",
            "password": f"{CANARY}-db",
        },
        "registry": {"url": "http://registry", "user": "me", "password_file": str(tmp_path / "registry.password")},
        "views": [{"name": "all", "window": "1 m"}],
        "redis": {"url": f"redis://:{CANARY}-redis@127.0.0.1:{port}/0"},
        "metrics": {"port": 1},
    }


def made(folder: Path, document: dict[str, Any], *words: str) -> dict[str, str]:
    """Run the command; the texts of the archive by name."""
    config, out = folder / "tidemark.toml", folder / "out.tar.gz"
    nested = document["kafka"].pop("options", None)
    text = to_toml(document)
    if nested is not None:
        text += "\n[kafka.options]\n" + "".join(f'"{key}" = {json.dumps(value)}\n' for key, value in nested.items())
    config.write_text(text, encoding="utf-8")
    assert main(["support", "--config", str(config), "--out", str(out), *words]) == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    with tarfile.open(out) as archive:
        entries = {entry.name: archive.extractfile(entry) for entry in archive.getmembers()}
        return {name.removeprefix("out/"): file.read().decode() for name, file in entries.items() if file is not None}


def test_no_canary_is_in_the_archive_or_on_the_screen(
    tmp_path: Path, document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "service.log"
    lines = [
        f"jdbc:postgresql://me:{CANARY}-url@db/x failed",
        f"authentication of me with {CANARY}-kafka, {CANARY}-registry, {CANARY}-oauth, {CANARY}-db, {CANARY}-jdbc",
        f'{{"message": "sasl.jaas.config = x password=\\"{CANARY}-jaas\\";"}}',
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----",
        f"Authorization: Basic {CANARY}",
        f"Cookie: tidemark={CANARY}; other={CANARY}",
        f"GET https://a.blob.net/x?sv=1&sig={CANARY}&se=2",
        f"spark.hadoop.fs.s3a.secret.key {CANARY}",
        f"no login with {CANARY}-query at jdbc:oracle:thin:me/{CANARY}@//h:1/x",
        "the last line",
    ]
    log.write_text("\n".join(lines), encoding="utf-8")
    with served() as service:
        service.status.failed(SinkError(f"Redis at redis://me:{CANARY}-redis@h refuses password={CANARY}-other"))
        document["metrics"]["port"] = service.port
        texts = made(tmp_path, document, "--log", str(log))
    assert not [name for name, text in texts.items() if CANARY in text]
    printed = capsys.readouterr()
    assert CANARY not in printed.out + printed.err
    assert "the last line" in texts["logs/1-service.log"]
    assert json.loads(texts["status.json"])["last_error"]["code"] == "SINK"


def test_the_archive_has_all_its_documents(tmp_path: Path, document: dict[str, Any], redis: Redis) -> None:
    with redis.client(password=f"{CANARY}-redis") as client:
        client.set("tidemark:meta", '{"contract": 3}')
        client.set("tidemark:device:d1", "not to be read")
    with served() as service:
        service.status.batch(REPORT)
        document["metrics"]["port"] = service.port
        texts = made(tmp_path, document)
    assert set(texts) == {
        *("about.txt", "settings.json", "versions.json", "status.json", "readyz.json", "metrics.txt"),
        *("conditions.json", "checkpoint.json", "redis.json"),
    }
    settings = json.loads(texts["settings.json"])
    assert settings["input"]["measures"]["token"]["path"] == "env.token"
    assert settings["kafka"]["options"]["sasl.mechanism"] == "OAUTHBEARER"
    assert settings["kafka"]["options"]["ssl.key.pem"] == "***"
    assert settings["reference"]["url"] == "jdbc:postgresql://db/fleet"
    assert settings["admission"]["max_delay_ms"] == 60_000
    versions = json.loads(texts["versions.json"])
    assert versions["packages"]["pyspark"].startswith("4.")
    assert "openjdk" in versions["java"].lower()
    assert json.loads(texts["status.json"])["batches"][0]["batch"] == 7
    assert "not held yet" in json.loads(texts["readyz.json"])["reason"]
    assert "tidemark_records_total" in texts["metrics.txt"]
    checkpoint = json.loads(texts["checkpoint.json"])
    assert checkpoint["manifest"]["application"] == "0.1.0"
    assert checkpoint["folders"]["state"] == {"files": 1, "bytes": 100}
    [store] = json.loads(texts["redis.json"])
    assert store["meta"] == '{"contract": 3}'
    assert store["server"]["role"] == "master"
    assert "not to be read" not in "".join(texts.values())


def test_an_option_of_an_outlet_is_only_its_name(document: dict[str, Any]) -> None:
    options = {"sasl.oauthbearer.config": f"x={CANARY}", "security.protocol": "SASL_SSL"}
    outlet = {"kind": "kafka", "name": "kf", "topic": "x", "format": "json", "bootstrap": "h:1", "options": options}
    [shown] = support.shown(parse({**document, "outlets": [outlet]}))["outlets"]
    assert shown["options"] == {"sasl.oauthbearer.config": "***", "security.protocol": "SASL_SSL"}


def test_what_cannot_be_had_is_named_and_the_rest_is_there(
    tmp_path: Path, document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    document["redis"]["url"] = f"redis://:{CANARY}@127.0.0.1:1"
    document["service"]["checkpoint"] = "s3a://bucket/checkpoint"
    texts = made(tmp_path, document, "--log", str(tmp_path / "none.log"), "--log", str(tmp_path))
    assert {"about.txt", "settings.json", "versions.json"} == set(texts)
    for name in ("status.json", "metrics.txt", "checkpoint.json", "redis.json", "logs/1-none.log"):
        assert f"{name}: not there: " in texts["about.txt"]
    printed = capsys.readouterr().out
    assert "without checkpoint.json: the checkpoint is not on this machine" in printed
    assert CANARY not in printed


def test_the_end_of_a_long_log_is_taken_also_from_standard_input(
    tmp_path: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "LOG_BYTES", 1 << 18)
    line = b"a line \xff of a log\n"
    content = line * (9 * support.LOG_BYTES // len(line)) + b"the end"  # more than is read at a time
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    log = tmp_path / "long.log"
    log.write_bytes(content)
    texts = made(tmp_path, document, "--log", "-", "--log", str(log))
    for name in ("logs/1-stdin", "logs/2-long.log"):
        assert texts[name].startswith("a line")
        assert texts[name].endswith("the end")
        assert len(texts[name]) <= support.LOG_BYTES


def test_an_archive_is_never_written_over(
    tmp_path: Path, document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, document)
    words = ["support", "--config", str(tmp_path / "tidemark.toml"), "--out", str(tmp_path / "out.tar.gz")]
    assert main(words) == SettingsError.status
    assert "is there already" in capsys.readouterr().err

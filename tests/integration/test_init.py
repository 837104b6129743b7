"""`tidemark init` on real topics: what it writes passes `check`.

tests/integration/test_tutorial.py shows that `run` makes values of it without an edit, from JSON and from Avro.
"""

import gzip
import io
import json
import sqlite3
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest

from load.servers.kafka import LOG_APPEND_TIME, Broker
from load.servers.redis import Redis
from load.servers.schema_registry import Registry
from service import settings
from service.cli import main
from tests.stream.messages import ENV, FILE, READING_CLASS, framed, text
from tests.topics import send

pytestmark = pytest.mark.integration


def nested(count: int) -> list[bytes]:
    """The last readings of 20 sensors that send each second."""
    now_ms = time.time_ns() // 1_000_000
    records = []
    for n in range(count):
        at = datetime.fromtimestamp((now_ms - (count - n) * 50) / 1000, UTC).isoformat(timespec="milliseconds")
        reading = {"sensor": f"s{n % 20}", "ts": at, "env": {"temp": 20 + n % 5, "hum": 40.5}, "fw": "1.2.3"}
        records.append(json.dumps(reading).encode())
    return records


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_init_writes_settings_that_check_accepts_and_replaces_no_file(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker_server.create_topic("init-nested", 2, LOG_APPEND_TIME)
    send(broker_server, "init-nested", nested(600), 2)
    config = tmp_path / "tidemark.toml"
    where = ["--bootstrap", broker_server.bootstrap, "--topic", "init-nested", "--redis", redis_server.url]
    words = ["init", *where, "--config", str(config)]
    with pytest.raises(SystemExit, match=r"^2$"):
        main(words)
    assert not config.exists()
    assert "nothing is written: give --yes" in capsys.readouterr().err
    assert main([*words, "--yes"]) == 0
    shown = capsys.readouterr().out
    assert "20 devices" in shown
    assert "not sure" not in shown
    assert "Windows are final 70 s after their end (max_delay 1 m + max_ahead 10 s)" in shown
    assert shown.splitlines()[-2:] == [f"  tidemark {word} --config {config}" for word in ("check", "run")]
    written = config.read_text()
    assert len(written.splitlines()) < 50
    assert tomllib.loads(written)["input"] == {
        "format": "json",
        "device_id": "sensor",
        "event_time": "ts",
        "event_time_unit": "iso",
        "measures": {"temp": "env.temp", "hum": "env.hum"},
    }

    assert (main([*words, "--yes"]), config.read_text()) == (2, written)
    assert f"{config} exists, and init replaces no file" in capsys.readouterr().err

    assert main(["check", "--config", str(config)]) == 0, capsys.readouterr().out


def test_a_setting_that_nobody_could_tell_is_in_the_file_and_ends_with_2(
    broker_server: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker_server.create_topic("init-nobody", 1, LOG_APPEND_TIME)
    send(broker_server, "init-nobody", [json.dumps({"flow": n % 7 + 0.5}).encode() for n in range(50)])
    config = tmp_path / "tidemark.toml"
    where = ["--bootstrap", broker_server.bootstrap, "--topic", "init-nobody", "--config", str(config), "--yes"]
    assert main(["init", *where]) == 2
    shown = capsys.readouterr()
    assert "input.device_id could not be told from the sample" in shown.err
    assert "input.device_id: no field looks like the id of a device" in shown.out
    assert "input.event_time: no field has times" in shown.out
    assert "# TO DO: give device_id" in config.read_text()
    assert 'event_time = "$timestamp"' in config.read_text()


def test_a_topic_that_cannot_be_proposed_for_is_named_and_nothing_is_written(
    broker_server: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "tidemark.toml"
    for topic, values, status, message in (
        ("init-lost", None, 5, "init-lost does not exist"),
        ("init-empty", [], 5, "init-empty: there is no record to look at"),
        ("init-csv", [b"a;1", b"b;2", b"[1]"], 3, "no record of 3 can be decoded: 2 no JSON, 1 JSON, but no object"),
    ):
        if values is not None:
            broker_server.create_topic(topic, 1, LOG_APPEND_TIME)
            send(broker_server, topic, values)
        where = ["--bootstrap", broker_server.bootstrap, "--topic", topic, "--config", str(config), "--yes"]
        assert main(["init", *where]) == status
        assert message in capsys.readouterr().err
        assert not config.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--redis", "redis://:secret@localhost"), "use --redis-password-file"),
        (("--option", "sasl.password=secret"), "use --password-file"),
        (("--option", "sasl.mechanism"), "is not NAME=VALUE"),
        (("-n", "0"), "-n"),
    ],
)
def test_a_secret_does_not_get_into_the_file(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--bootstrap", "localhost:1", "--topic", "t", "--config", str(tmp_path / "t.toml")]
    with pytest.raises(SystemExit) as ended:
        main(["init", *where, *words])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert message in " ".join(shown.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


PASSWORD = "s3cret-of-a-newcomer"  # noqa: S105
AVRO = {
    "type": "record",
    "name": "Uplink",
    "fields": [
        {"name": "meta", "type": {"type": "record", "name": "Meta", "fields": [{"name": "serial", "type": "string"}]}},
        {"name": "measured_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "body",
            "type": {
                "type": "record",
                "name": "Body",
                "fields": [
                    {"name": "pressure", "type": ["null", "double"], "default": None},
                    {"name": "flow", "type": "float"},
                    {"name": "note", "type": ["null", "string", "double"], "default": None},
                ],
            },
        },
    ],
}


def uplinks(number: int, count: int = 400) -> list[bytes]:
    """Nested Avro with a schema id, of 10 devices that send each second."""
    now_ms = time.time_ns() // 1_000_000
    schema: Any = fastavro.parse_schema(AVRO)
    records = []
    for n in range(count):
        out = io.BytesIO(b"\0" + number.to_bytes(4))
        out.seek(5)
        body = {"pressure": None if n % 5 else 1.5, "flow": float(n % 3), "note": 2.0}
        reading = {"meta": {"serial": f"p{n % 10}"}, "measured_at": now_ms - (count - n) * 100, "body": body}
        fastavro.schemaless_writer(out, schema, reading)
        records.append(out.getvalue())
    return records


def fleet(folder: Path) -> str:
    """A database of the devices, as a JDBC URL."""
    with sqlite3.connect(folder / "fleet.db") as database:
        database.execute("create table pumps (serial text, plant text, size int, bought text)")
        rows = [(f"p{n}", "north" if n < 5 else "south", n % 2, f"2020-01-{n + 1:02d}") for n in range(12)]
        database.executemany("insert into pumps values (?, ?, ?, ?)", rows)
    database.close()
    return f"jdbc:sqlite:{folder}/fleet.db"


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_avro_of_a_registry_with_a_reference_and_a_login_needs_no_edit(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert broker_server.authority is not None
    broker_server.create_topic("init-uplinks", 2, LOG_APPEND_TIME)
    broker_server.add_user("newcomer", PASSWORD)
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    config = tmp_path / "tidemark.toml"
    with Registry(user="reader", password=PASSWORD, first_id=7) as registry:
        number = registry.register("com.example.Uplink", AVRO)
        send(broker_server, "init-uplinks", uplinks(number), 2)
        words = [
            "--bootstrap",
            broker_server.secure("SCRAM"),
            "--topic",
            "init-uplinks",
            "--config",
            str(config),
            "--yes",
        ]
        words += ["--user", "newcomer", "--password-file", str(password)]
        words += ["--ca-file", str(broker_server.authority.ca_file), "--redis", redis_server.url]
        assert main(["init", *words]) == 3
        assert "the records begin with a schema id (7), and no schemas are named" in capsys.readouterr().err
        words += ["--registry", registry.url, "--registry-user", "reader", "--registry-password-file", str(password)]
        words += ["--reference", fleet(tmp_path), "--query", "select serial, plant, size, bought from pumps"]
        assert main(["init", *words]) == 0, capsys.readouterr()
        written = config.read_text()
        assert PASSWORD not in written
        document = tomllib.loads(written)
        assert document["input"] == {
            "reader_schema": 7,
            "device_id": "meta.serial",
            "event_time": "measured_at",
            "measures": {"pressure": "body.pressure", "flow": "body.flow"},
        }
        assert document["registry"]["subjects"] == ["com.example.Uplink"]
        assert (document["kafka"]["user"], document["kafka"]["password_file"]) == ("newcomer", "password")
        assert (document["reference"]["key"], [view["name"] for view in document["views"]]) == (
            "serial",
            ["device", "plant", "size"],
        )
        assert main(["check", "--config", str(config)]) == 0, capsys.readouterr().out


def test_avro_of_a_folder_takes_the_newest_schema_and_names_an_unknown_id(
    broker_server: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "avro").mkdir()
    (tmp_path / "avro" / "3.avsc").write_text(json.dumps(AVRO))
    broker_server.create_topic("init-folder", 1, LOG_APPEND_TIME)
    send(broker_server, "init-folder", uplinks(9, 50))
    config = tmp_path / "tidemark.toml"
    words = ["--bootstrap", broker_server.bootstrap, "--topic", "init-folder", "--config", str(config), "--yes"]
    words += ["--schemas", str(tmp_path / "avro")]
    assert main(["init", *words]) == 3
    assert f"the records have the schema ids 9, {tmp_path / 'avro'} has 3" in capsys.readouterr().err
    send(broker_server, "init-folder", uplinks(3, 200))
    assert main(["init", *words]) == 0
    assert "50 records were not decoded: schema 9, which is not among the known ones" in capsys.readouterr().out
    assert tomllib.loads(config.read_text())["input"]["schemas"] == "avro"


def documents(count: int = 200) -> list[bytes]:
    """JSON of 10 devices that send each second."""
    now_ms = time.time_ns() // 1_000_000
    return [
        json.dumps({"device_id": f"d{n % 10}", "event_time": now_ms - (count - n) * 100, "flow": n % 3 + 0.5}).encode()
        for n in range(count)
    ]


def messages(number: int, count: int = 200) -> list[bytes]:
    records = []
    for n in range(count):
        made = READING_CLASS(device_id=f"d{n % 10}")
        made.event_time.FromMilliseconds(time.time_ns() // 1_000_000 - (count - n) * 100)
        made.temperature.value = n % 3 + 0.5
        records.append(framed(made.SerializeToString(), number))
    return records


def test_the_format_is_that_of_the_registry_and_arrays_are_seen(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Registry() as registry:
        of_documents = registry.register("init-documents-value", {"type": "object"}, kind="JSON")
        registry.register("env", text(ENV), kind="PROTOBUF")
        references = [{"name": "env.proto", "subject": "env", "version": 1}]
        of_messages = registry.register("fleet.Reading", text(FILE), references, kind="PROTOBUF")
        head = b"\0" + of_documents.to_bytes(4)
        array = b"[" + b",".join(documents(40)) + b"]"
        samples = {
            "init-documents": [head + each for each in documents()],
            "init-messages": messages(of_messages),
            "init-gateways": [gzip.compress(array), array, b"[]", b"broken"],
            "init-packed": [*map(gzip.compress, documents(39)), array],
        }
        inputs = {}
        for topic, values in samples.items():
            broker_server.create_topic(topic, 1, LOG_APPEND_TIME)
            send(broker_server, topic, values)
            config = tmp_path / f"{topic}.toml"
            words = ["--bootstrap", broker_server.bootstrap, "--topic", topic, "--redis", redis_server.url]
            registered = [] if topic in {"init-gateways", "init-packed"} else ["--registry", registry.url]
            assert main(["init", *words, *registered, "--config", str(config), "--yes"]) == 0
            inputs[topic] = tomllib.loads(config.read_text())["input"]
            assert settings.load(config).form.is_json
    common = {"device_id": "device_id", "event_time": "event_time"}
    flow = {**common, "measures": {"flow": "flow"}}
    assert inputs["init-documents"] == {"format": "json-schema", **flow}
    assert inputs["init-gateways"] == inputs["init-packed"] == {"format": "json", "array": True, **flow}
    assert "no JSON" not in capsys.readouterr().out.partition("init-packed")[2].partition("init-messages")[0]
    assert inputs["init-messages"] == {
        "format": "protobuf",
        **common,
        "event_time_unit": "iso",
        # Nobody sets `count`: in proto3 that is a zero.
        "measures": {"temperature": "temperature", "count": "count"},
    }
    written = tomllib.loads((tmp_path / "init-messages.toml").read_text())
    assert written["registry"]["subjects"] == ["fleet.Reading"]

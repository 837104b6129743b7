"""`tidemark check`: try everything that the settings name before the service is started, and say what to do about each.

Nothing is changed: no topic is made, nothing is stored, the lease is not taken. What is tried by writing is taken back.
"""

import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import fastavro
import redis
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service import settings
from service.admission import decode
from service.admission.schema_sources import load_schemas, schema_source
from service.checkpoint import logs, manifest
from service.checkpoint.manifest import Manifest
from service.commands import compatibility, durability
from service.commands.finding import Line, failed, ok
from service.errors import (
    CheckpointError,
    ReferenceDataError,
    SchemaError,
    SetupError,
    SinkError,
    SourceError,
    TidemarkError,
)
from service.kafka import clients, source, topics
from service.monitoring import status
from service.pipeline import builder, failure
from service.redis import client as redis_client
from service.redis.keys import Keys
from service.reference import database, lookup
from service.reference.expectations import require_columns, usable, validate
from service.settings import RECORD_KEY, Settings
from service.spark import session
from service.spark.files import Local
from service.units import format_duration

JAVA_VERSIONS = (17, 21)
JARS = ("spark-sql-kafka-0-10_", "spark-token-provider-kafka-0-10_", "spark-avro_", "kafka-clients-", "commons-pool2-")
JARS_FOR_FILES = "hadoop-bare-naked-local-fs-"
JDBC_JARS = {"postgresql": "postgresql-", "sqlite": "sqlite-jdbc-"}
REDIS_VERSION = (6, 2)
FREE_BYTES = 1 << 30
_NUMBERS = frozenset({"int", "long", "float", "double"})


def check_file(path: Path) -> list[Line]:
    """`checks` of a settings file; one line that says why when it cannot be used."""
    try:
        loaded = settings.load(path)
    except TidemarkError as error:
        return [failed("settings", error)]
    return [ok("settings", f"{path}, {len(loaded.views)} views"), *checks(loaded)]


def checks(given: Settings) -> list[Line]:
    """Try everything; a failure stops nothing but what depends on it. Takes about 10 s, most of it Spark's start."""
    lines: list[Line] = []

    def attempt(name: str, family: type[TidemarkError], steps: Callable[[Settings], Iterator[Line]]) -> bool:
        before = len(lines)
        try:
            lines.extend(steps(given))
        except TidemarkError as error:
            lines.append(failed(name, error))
        except (OSError, ValueError, KafkaException, redis.RedisError, PySparkException) as error:
            lines.append(failed(name, family(" ".join(str(error).split()) or type(error).__name__)))
        return not any(line.status == "fail" for line in lines[before:])

    machine = attempt("java", SetupError, _java) & attempt("jars", SetupError, _jars)
    attempt("checkpoint", CheckpointError, _checkpoint)
    attempt("metrics", SetupError, _metrics_port)
    attempt("quality", SchemaError, _quality)
    answers = attempt("kafka", SourceError, _kafka)
    attempt("manifest", CheckpointError, _manifest)
    decodes = attempt("schemas", SchemaError, _schemas)
    attempt("redis", SinkError, _redis)
    if machine:
        if answers:
            attempt("kafka in Spark", SourceError, _kafka_in_spark)
        attempt("reference", ReferenceDataError, _reference)
        if decodes:
            attempt("plan", SchemaError, _plan)
    else:
        lines.append(Line("reference", "warn", "not tried: it needs Java and the jars"))
    return lines


# The machine


def _java(_given: Settings) -> Iterator[Line]:
    program = session.java()
    said = subprocess.run(  # noqa: S603 - the program that Spark's own scripts run
        [program, "-version"], capture_output=True, text=True, timeout=30, check=False
    ).stderr
    found = re.search(r'version "(\d+)', said)
    release = int(found[1]) if found else 0
    if release not in JAVA_VERSIONS:
        what = f"{program} is Java {release or said.strip()!r}, Spark needs {' or '.join(map(str, JAVA_VERSIONS))}"
        raise SetupError(what, remedy="Install a full JDK 17 and set JAVA_HOME")
    yield ok("java", f"{program} is Java {release}")


def _jars(given: Settings) -> Iterator[Line]:
    folder = session.jars()
    names = session.class_path()
    wanted = list(JARS)
    if logs.local(given.service.checkpoint) is not None:
        wanted.append(JARS_FOR_FILES)
    if given.reference is not None and (kind := given.reference.url.split(":")[1]) in JDBC_JARS:
        wanted.append(JDBC_JARS[kind])
    missing = [jar for jar in wanted if f"/{jar}" not in names]
    if missing:
        what = f"{folder} lacks {', '.join(f'{jar}*.jar' for jar in missing)}"
        raise SetupError(what, remedy="Run `make setup`, or name the folder above it in TIDEMARK_JARS")
    yield ok("jars", f"{folder}, {len(wanted)} needed ones are there")


def _metrics_port(given: Settings) -> Iterator[Line]:
    address, port = given.metrics.address, given.metrics.port
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            running = status.ask(given.metrics)
            if running is not None and running["service"] == given.service.name:
                yield ok("metrics", f"{address}:{port} is held by the service, which runs")
                return
            what = f"metrics.port = {port}: {address}:{port} cannot be listened on ({error.strerror})"
            raise SetupError(what, remedy="Stop what holds it, or choose another port; 0 takes a free one") from error
    yield ok("metrics", f"{address}:{port} is free" if port else f"{address}, any free port")


def _quality(given: Settings) -> Iterator[Line]:
    path = given.quality.expectations
    if path is None:
        yield ok("quality", "no expectations of the readings in the settings")
        return
    many = usable(path, remedy="`tidemark profile` writes it, or mend [quality] expectations")
    every = format_duration(given.quality.every_ms)
    yield ok("quality", f"{path}: {many} expectations of {given.quality.sample} records, every {every}")


def _checkpoint(given: Settings) -> Iterator[Line]:
    folder = logs.local(given.service.checkpoint)
    if folder is None:
        yield Line("checkpoint", "warn", f"{given.service.checkpoint} is not a local path and was not tried")
        return
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        what = f"service.checkpoint: {existing} cannot be written ({error.strerror})"
        raise CheckpointError(what, remedy="Let the service's user write there, or name another folder") from error
    free = shutil.disk_usage(existing).free
    if free < FREE_BYTES:
        detail = f"{existing} has {free >> 20} MiB free"
        yield Line("checkpoint", "warn", detail, "A full disk ends the service: give it more")
    logs.require_whole(Local(folder))
    batch = logs.last_batch(Local(folder))
    yield ok("checkpoint", f"{folder}, " + ("new" if batch is None else f"its last batch is {batch}"))


# Kafka


def _kafka(given: Settings) -> Iterator[Line]:
    kafka = given.kafka
    client = clients.admin(kafka)
    found = topics.describe(client, kafka)
    yield ok("kafka", f"{kafka.bootstrap} answers")
    for name in kafka.topics:
        topic = found.get(name)
        if topic is None:
            yield failed(f"topic {name}", topics.missing(kafka, [name]))
            continue
        yield ok(f"topic {name}", f"{topic.partitions} partitions")
        yield from durability.copies(topic)
        if topic.timestamp_type != topics.LOG_APPEND_TIME:
            yield Line(
                f"topic {name}",
                "warn",
                f"message.timestamp.type is {topic.timestamp_type or 'not readable'}: event time is compared with the "
                "producers' clocks, not the broker's",
                f"Set message.timestamp.type={topics.LOG_APPEND_TIME} on the topic: one producer's wrong clock admits "
                "readings that poison the watermark",
            )
        yield from _rejects(client, given, topic, found)
    there = {name: found[name] for name in kafka.topics if name in found}
    if there:
        yield from durability.decompression(there.values())
        yield from durability.retention(given, there)


def _rejects(
    client: AdminClient, given: Settings, topic: topics.Topic, found: Mapping[str, topics.Topic]
) -> Iterator[Line]:
    name = given.kafka.rejects_topic(topic.name)
    there = found.get(name)
    if there is None:
        problem = topics.create(client, {name: topic.partitions}, dry_run=True)
        if problem is not None:
            yield failed(f"topic {name}", problem)
        else:
            yield ok(f"topic {name}", f"does not exist; `run` may create it, with {topic.partitions} partitions")
        return
    yield ok(f"topic {name}", f"{there.partitions} partitions")
    if 0 < there.max_bytes < topic.max_bytes:
        yield Line(
            f"topic {name}",
            "warn",
            f"max.message.bytes is {there.max_bytes}, the input topic's is {topic.max_bytes}",
            "Make it larger than the input topic's: a reject carries headers, and is cut down where it is too large",
        )


def _manifest(given: Settings) -> Iterator[Line]:
    folder = logs.local(given.service.checkpoint)
    there = manifest.read(Local(folder)) if folder is not None else None
    if there is not None:
        wanted = Manifest.of(given, topics.ids(given.kafka), there.shuffle_partitions)
        manifest.require(str(folder), there, wanted)
        yield ok("manifest", f"made by version {there.application}, fits these settings and topics")


# The input's form


def _schemas(given: Settings) -> Iterator[Line]:
    form = given.input
    if form.format == "json":
        yield ok("schemas", "JSON needs none")
    else:
        place = schema_source(given)
        known = load_schemas(given)
        for number, schema in known.schemas.items():
            try:
                fastavro.parse_schema(schema)
            except Exception as error:  # its own classes and plain ones: whatever it is, the schema is no good
                what = f"{place}: {number} is no Avro schema: {error}"
                raise SchemaError(what, remedy="Mend it, or take it away if nobody writes with it") from error
        reader = decode.reader_schema(known.reader, form)
        yield ok("schemas", f"{place} has the ids {', '.join(map(str, known.schemas))}")
        yield from _paths(given, reader)
    limit = _avro_limit()
    if given.admission.max_bytes > limit:
        yield Line(
            "admission.max_bytes",
            "warn",
            f"{given.admission.max_bytes} bytes are admitted, a field is decoded up to {limit} bytes",
            "Raise the Avro limits in deploy/spark-defaults.conf, or lower admission.max_bytes",
        )


def _paths(given: Settings, reader: dict[str, Any]) -> Iterator[Line]:
    form = given.input
    if form.device_id != RECORD_KEY:
        yield _fits("input.device_id", form.device_id, reader, {"string", "enum", "int", "long"})
    wanted = {
        "logical": {"timestamp-millis", "timestamp-micros", "timestamp-nanos"},
        "iso": {"string", "timestamp-millis", "timestamp-micros"},
    }.get(form.event_time_unit, {*_NUMBERS, "timestamp-millis", "timestamp-micros"})
    yield _fits("input.event_time", form.event_time, reader, wanted)
    for measure, path in form.measures.items():
        yield _fits(f"input.measures.{measure}", path, reader, set(_NUMBERS))


def _fits(key: str, path: str, reader: dict[str, Any], wanted: set[str]) -> Line:
    kinds = _kinds(reader, path.split("."))
    if not kinds:
        return failed(
            key, SchemaError(f"the reader's schema has no field {path!r}", remedy="Mend [input] or the schema")
        )
    if not kinds <= wanted:
        what = f"{path!r} is {' or '.join(sorted(kinds))} in the reader's schema, not {' or '.join(sorted(wanted))}"
        return failed(key, SchemaError(what, remedy="Map another field, or set input.event_time_unit to what it is"))
    return ok(key, f"{path} is {' or '.join(sorted(kinds))}")


def _kinds(schema: Any, path: Sequence[str]) -> set[str]:
    """The types at a path, without null; a logical type by its name. Empty where there is no such field."""
    if isinstance(schema, list):
        return set().union(*(_kinds(branch, path) for branch in schema if branch != "null"))
    if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
        return _kinds(schema["type"], path)
    if path:
        fields = schema.get("fields", ()) if isinstance(schema, dict) else ()
        return set().union(*(_kinds(field["type"], path[1:]) for field in fields if field["name"] == path[0]))
    if isinstance(schema, dict):
        return {str(schema.get("logicalType") or schema["type"])}
    return {str(schema)}


def _avro_limit() -> int:
    options = session.conf().get("spark.executor.defaultJavaOptions", "")
    found = re.search(r"avro\.limits\.bytes\.maxLength=(\d+)", options)
    return int(found[1]) if found else 1 << 31


# Redis

# A key under the service's prefix, written and removed in one step: it needs the rights that publishing needs.
_TRY = "redis.call('SET', KEYS[1], cmsgpack.pack(ARGV[1]), 'PX', 1000) return redis.call('DEL', KEYS[1])"


def _redis(given: Settings) -> Iterator[Line]:
    where = redis_client.address(given.redis)
    client = redis_client.client(given.redis)
    keys = Keys(given.redis.prefix)
    try:
        client.ping()
        client.eval(_TRY, 1, f"{given.redis.prefix}:check", "check")
        information: dict[str, Any] = client.info()
        epoch, lease, ttl_ms = client.get(keys.epoch), client.get(keys.lease), client.pttl(keys.lease)
    except redis.RedisError as error:
        what = f"Redis at {where}: {error}"
        raise SinkError(
            what, remedy="Check redis.url, its user and password, and its ACL (docs/operator.md)"
        ) from error
    finally:
        with suppress(redis.RedisError):
            client.close()
    version = str(information["redis_version"])
    if tuple(map(int, version.split(".")[:2])) < REDIS_VERSION:
        what = f"Redis at {where} is {version}, {'.'.join(map(str, REDIS_VERSION))} is needed"
        raise SinkError(what, remedy="Use a newer Redis")
    yield ok("redis", f"{where} is {version} and may be written")
    policy = str(information.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        detail = f"maxmemory-policy is {policy}: Redis may drop windows, sessions and the epoch itself"
        yield Line("redis memory", "warn", detail, "Set maxmemory-policy noeviction")
    elif information.get("role") == "slave":
        yield failed("redis role", SinkError(f"{where} is a replica", remedy="Point redis.url at the primary"))
    if lease is not None:
        owner = lease.decode(errors="replace")
        detail = f"epoch {(epoch or b'0').decode()} is running: {owner} holds the lease for {ttl_ms} ms more"
        yield Line("redis lease", "warn", detail, "A second service with this prefix waits until the first one ends")


# What needs Spark


def _kafka_in_spark(given: Settings) -> Iterator[Line]:
    """The other Kafka client: it has options of its own, and reads the records."""
    spark = session.build(given, master="local[1]")
    # Its timeouts are a minute and more.
    options = {f"kafka.{name}.timeout.ms": "20000" for name in ("request", "default.api")}
    reader = source.with_options(spark.read.format("kafka"), given.kafka).options(**options)
    try:
        reader.option("subscribe", ",".join(given.kafka.topics)).load().limit(1).count()
    except Exception as error:  # Spark's, py4j's and Kafka's own
        raise failure.classify(error) from error
    yield ok("kafka in Spark", f"{given.kafka.bootstrap} answers Spark's client, too")


def _reference(given: Settings) -> Iterator[Line]:
    if given.reference is None:
        yield ok("reference", "none in the settings")
        return
    spark = session.build(given, master="local[1]")
    table = database.fetch(spark, given.reference)
    yield ok("reference", f"{table.num_rows} devices, columns {', '.join(table.column_names[1:])}")
    validate(table, given.reference)
    yield ok("expectations", str(given.reference.expectations))
    for view in given.views:
        columns = [column for column in view.by if column != "device"]
        try:
            require_columns(table, columns)
        except ReferenceDataError as error:
            yield failed(f"view {view.name}", error)
        else:
            yield ok(f"view {view.name}", f"by {', '.join(view.by) or 'nothing'}, {format_duration(view.window_ms)}")


def _plan(given: Settings) -> Iterator[Line]:
    """Build the query without starting it: Spark analyses every step of it."""
    spark: SparkSession = session.build(given, master="local[1]")
    look_up = None
    if lookup.needed(given):
        names = lookup.bounds(given)
        nobody = spark.createDataFrame([], ", ".join(f"`{name}` string" for name in ("device", *names.values())))
        look_up = lookup.JoinLookUp(nobody, names)
    known = load_schemas(given)
    builder.build(source.stream(spark, given.kafka), given, None, 1, look_up, schemas=known)
    yield ok("plan", "Spark accepts the query")
    if given.input.format == "avro":
        yield from compatibility.in_use(given, known)

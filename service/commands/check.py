"""`tidemark check`: try everything that the settings name before the service is started, with a remedy for each failure.

Nothing is changed: no topic is created, nothing is stored, the lease is not taken. Trial writes are removed again.
"""

import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import redis
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException

from service import clock, tracing
from service.checkpoint import logs, manifest, view_versions
from service.checkpoint.manifest import Manifest
from service.commands import check_input, check_spark, durability
from service.commands.finding import Line, failed, ok
from service.errors import (
    CheckpointError,
    OutletError,
    ReferenceDataError,
    SchemaError,
    SetupError,
    SinkError,
    SourceError,
    TidemarkError,
)
from service.kafka import clients, matching, topics
from service.micro_batch import parse_offsets
from service.monitoring import status
from service.monitoring.pages import NoServiceError, host_port, not_listening
from service.printing import counted
from service.publication import meta
from service.redis import client as redis_client
from service.redis.keys import Keys, shards
from service.redis.link import reader
from service.reference.expectations import usable
from service.settings import Settings, load
from service.spark import jars, java
from service.spark.files import Local, local
from service.spark.internals import offset_log
from service.units import format_duration

REDIS_VERSION = (6, 2)
FREE_BYTES = 1 << 30


def check_file(path: Path) -> list[Line]:
    """Load a settings file and run `checks`; one failed line if it cannot be loaded."""
    lines: list[Line] = []
    try:
        loaded = load(path)
        lines.append(ok("settings", f"{path}, {counted(len(loaded.views), 'view')}"))
        return [*lines, *checks(matching.resolved(loaded))]
    except TidemarkError as error:
        return [*lines, failed("kafka" if lines else "settings", error)]


def checks(settings: Settings) -> list[Line]:
    """Run all checks except those that depend on a failed one. Spark starts while those run that do not need it."""
    lines: list[Line] = []

    def attempt(name: str, family: type[TidemarkError], steps: Callable[[Settings], Iterator[Line]]) -> bool:
        before = len(lines)
        try:
            lines.extend(steps(settings))
        except TidemarkError as error:
            lines.append(failed(name, error))
        except (OSError, ValueError, KafkaException, redis.RedisError, PySparkException) as error:
            lines.append(failed(name, family(" ".join(str(error).split()) or type(error).__name__)))
        return not any(line.status == "fail" for line in lines[before:])

    machine = attempt("java", SetupError, _java) & attempt("jars", SetupError, _jars)
    starting = check_spark.start(settings) if machine else None
    attempt("checkpoint", CheckpointError, _checkpoint)
    attempt("metrics", SetupError, _metrics_port)
    attempt("quality", SchemaError, _quality)
    lines.extend(durability.expiry(settings))
    attempt("otel", SetupError, _otel)
    answers = attempt("kafka", SourceError, _kafka)
    if not any(line.name == "kafka" and line.status == "fail" for line in lines):  # it asks for the topics' ids
        attempt("manifest", CheckpointError, _manifest)
    decodes = attempt("schemas", SchemaError, check_input.mapping)
    attempt("redis", SinkError, _redis)
    if starting is not None:
        expectations = attempt("expectations", SchemaError, _expectations)
        wait([starting])  # what it raises, the first check that needs Spark raises again
        if answers:
            attempt("kafka in Spark", SourceError, check_spark.kafka)
        if expectations:
            attempt("reference", ReferenceDataError, check_spark.reference)
        if settings.outlets:
            attempt("outlets", OutletError, check_spark.outlets)
        if decodes and attempt("plan", SchemaError, check_spark.plan) and answers:
            attempt("fields", SourceError, check_spark.sample_of_fields)
            attempt("filters", SourceError, check_spark.sample_of_filters)
    else:
        lines.append(Line("reference", "warn", "not tried: it needs Java and the jars"))
    return lines


# The machine


def _java(_: Settings) -> Iterator[Line]:
    program = java.supported()
    yield ok("java", f"{program} is Java {java.version(program)}")


def _jars(_: Settings) -> Iterator[Line]:
    number = len(jars.complete())
    jars.require_tested()
    yield ok("jars", f"{jars.folder()}, all {number} jars, for PySpark {jars.PYSPARK}")


def _metrics_port(settings: Settings) -> Iterator[Line]:
    address, port = settings.metrics.address, settings.metrics.port
    place = host_port(address, port)
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if probe.family == socket.AF_INET6:  # as the service listens
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind((address, port))
    except (OSError, UnicodeError) as error:
        running = _running(settings)
        if running.get("service") == settings.service.name:
            yield ok("metrics", f"{place} is in use by the running service")
            return
        if "pipelines" in running:
            names = ", ".join(running["pipelines"])
            yield ok("metrics", f"{place} is in use by the running process of the pipelines {names}")
            return
        raise not_listening(address, port, error) from error
    yield ok("metrics", f"{place} is free" if port else f"{address}, any free port")


def _expectations(settings: Settings) -> Iterator[Line]:
    reference = settings.reference
    if reference is None:
        return
    if reference.expectations is None:
        rules = "keys are present and unique (`tidemark profile --reference` draws more rules)"
        yield ok("expectations", f"no file; {rules}")
        return
    many = usable(reference.expectations, remedy="Name the file in [reference] expectations")
    yield ok("expectations", f"{reference.expectations}: {many} expectations")


def _running(settings: Settings) -> Mapping[str, Any]:
    """Return the status of the process at [metrics], {} where no service answers."""
    with suppress(NoServiceError):
        return status.asked_all(settings.metrics)
    return {}


def _quality(settings: Settings) -> Iterator[Line]:
    path = settings.quality.expectations
    if path is None:
        yield ok("quality", "no expectations of the readings in the settings")
        return
    many = usable(path, remedy="`tidemark profile` writes it, or mend [quality] expectations")
    every = format_duration(settings.quality.every_ms)
    yield ok("quality", f"{path}: {many} expectations of {settings.quality.sample} records, every {every}")


def _otel(settings: Settings) -> Iterator[Line]:
    target = tracing.Target.of(settings)
    if target is None:
        return
    if tracing.answers(target):
        yield ok("otel", f"{target.endpoint} takes traces")
    else:
        yield Line("otel", "warn", f"{target.endpoint} takes no traces: they will be dropped", "Check [otel] endpoint")


def _checkpoint(settings: Settings) -> Iterator[Line]:
    folder = local(settings.service.checkpoint)
    if folder is None:
        yield Line("checkpoint", "warn", f"{settings.service.checkpoint} is not a local path and was not tried")
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
    batch = offset_log.last(Local(folder))
    yield ok("checkpoint", f"{folder}, " + ("new" if batch is None else f"its last batch is {batch}"))


# Kafka


def _kafka(settings: Settings) -> Iterator[Line]:
    kafka = settings.kafka
    client = clients.admin(kafka)
    described = topics.describe(client, kafka)
    yield ok("kafka", f"{kafka.bootstrap} answers")
    for name in kafka.topics:
        topic = described.get(name)
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
        yield from _rejects(client, settings, topic, described)
    inputs = {name: described[name] for name in kafka.topics if name in described}
    if inputs:
        yield from durability.decompression(inputs.values())
        yield from durability.retention(settings, inputs)


def _rejects(
    client: AdminClient, settings: Settings, topic: topics.Topic, described: Mapping[str, topics.Topic]
) -> Iterator[Line]:
    name = settings.kafka.rejects_topic(topic.name)
    rejects = described.get(name)
    if rejects is None:
        problem = topics.create(client, {name: topic.partitions}, dry_run=True)
        if problem is not None:
            yield failed(f"topic {name}", problem)
        else:
            yield ok(f"topic {name}", f"does not exist; `run` may create it, with {topic.partitions} partitions")
        return
    yield ok(f"topic {name}", f"{rejects.partitions} partitions")
    if 0 < rejects.max_bytes < topic.max_bytes:
        yield Line(
            f"topic {name}",
            "warn",
            f"max.message.bytes is {rejects.max_bytes}, the input topic's is {topic.max_bytes}",
            "Make it larger than the input topic's: a reject carries headers, and is cut down where it is too large",
        )


def _manifest(settings: Settings) -> Iterator[Line]:
    folder = local(settings.service.checkpoint)
    current = manifest.read(Local(folder)) if folder is not None else None
    if current is not None:
        settings = settings.with_buckets(manifest.buckets(settings, current, current.shuffle_partitions))
        needed = Manifest.of(settings, topics.ids(settings.kafka), current.shuffle_partitions)
        manifest.require(str(folder), current, needed)
        yield ok("manifest", f"made by version {current.application}, fits these settings and topics")


# Redis

# A key under the service's prefix, written and removed in one step: it needs the rights that publishing needs.
_TRY = "redis.call('SET', KEYS[1], cmsgpack.pack(ARGV[1]), 'PX', 1000) return redis.call('DEL', KEYS[1])"


def _redis(settings: Settings) -> Iterator[Line]:
    stores, findings = shards(settings.redis), list[Line]()
    versions = [_shard(settings, keys, findings.append) for keys in stores]
    meta.require_stored(settings.redis)
    with reader(settings.redis, stores[0], "progress") as (client, budget):
        offsets = budget.attempt(partial(client.hget, stores[0].progress, "offsets"))
        published = budget.attempt(partial(client.get, stores[0].meta))
    yield from _views(settings, (published or b"{}").decode())
    meta.require_topics(settings, parse_offsets(offsets or "{}"))
    several = f", all {len(stores)} shards" if len(stores) > 1 else ""
    yield ok("redis", f"{redis_client.address(settings.redis)} is {versions[0]} and may be written{several}")
    yield from findings


def _is_own(settings: Settings, epoch: int) -> bool:
    """Whether the service at [metrics] is the one with these settings, and has this epoch."""
    running = _running(settings)
    document = running.get("pipelines", {}).get(settings.service.name, running)
    return bool(document.get("service") == settings.service.name and document.get("epoch") == epoch)


def _views(settings: Settings, published: str) -> Iterator[Line]:
    """Say what changes in the views. A new checkpoint has no versions: there a view must be as its published windows are."""
    folder = local(settings.service.checkpoint)
    log = view_versions.Log(Local(folder)) if folder is not None else None
    numbers = log.numbers() if log is not None else []
    if log is None or not numbers:
        begun = view_versions.begun(settings, published)
        meta.require_views(view_versions.applied(settings, begun), published)
        return
    before = log.at(max(numbers)) or view_versions.Versions()
    view_versions.require_rules(before, settings, clock.now_ms())
    for line in view_versions.described(before, view_versions.changed(before, settings, 0)):
        yield ok("views", line)


def _shard(settings: Settings, keys: Keys, say: Callable[[Line], object]) -> str:
    """Try a shard and return the version of its Redis."""
    options = settings.redis
    where = redis_client.address(options, keys)
    client = redis_client.client(options, keys)
    try:
        client.ping()
        client.eval(_TRY, 1, f"{keys.prefix}:check", "check")
        information: dict[str, Any] = client.info()
        meta.require_types(settings, [keys])
        epoch, lease, ttl_ms = client.get(keys.epoch), client.get(keys.lease), client.pttl(keys.lease)
    except redis.RedisError as error:
        what = f"Redis at {where}: {error}"
        raise SinkError(
            what, remedy="Check redis.url, its user and password, and its ACL (docs/operator/redis.md)"
        ) from error
    finally:
        with suppress(redis.RedisError):
            client.close()
    version = str(information["redis_version"])
    if tuple(map(int, version.split(".")[:2])) < REDIS_VERSION:
        what = f"Redis at {where} is {version}, {'.'.join(map(str, REDIS_VERSION))} is needed"
        raise SinkError(what, remedy="Use a newer Redis")
    policy = str(information.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        detail = f"maxmemory-policy is {policy}: Redis may drop windows, sessions and the epoch itself"
        say(Line("redis memory", "warn", detail, "Set maxmemory-policy noeviction"))
    elif information.get("role") == "slave":
        say(failed("redis role", SinkError(f"{where} is a replica", remedy="Point redis.url at the primary")))
    owner = "" if lease is None else lease.decode(errors="replace")
    if owner and _is_own(settings, int(epoch or 0)):
        say(ok("redis lease", f"this service runs, with epoch {int(epoch or 0)}: {owner} holds the lease"))
    elif owner:
        detail = f"epoch {(epoch or b'0').decode()} is running: {owner} holds the lease for {ttl_ms} ms more"
        say(Line("redis lease", "warn", detail, "A second service with this prefix waits until the first one ends"))
    return version

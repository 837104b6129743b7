"""What a row costs: the service's way to write a batch, against plain pipelined HSET and PEXPIRE of as many fields.

Both write to one Redis, in turn. A batch has a window, an open session and the hash of each device, which is what a reading of a
large fleet changes; every batch but the first replaces what is there. `measure_new` does the same with devices that are new in
each batch, so that both have the same number of keys at any time.

`measure_cluster` writes the same batches to one Redis with one shard, to one with SHARDS, and to three primaries, in turn.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from load.servers.redis import Redis
from load.servers.redis_cluster import RedisCluster
from schemas import contract
from service import settings
from service.daemon.lease import Lease
from service.micro_batch import MicroBatch
from service.pipeline.batch_publisher import Sink
from service.publication.policy import WritePolicy
from service.row_schemas import CHANGES
from state import codec
from state.layout import Changes, session_schema, status_schema
from state.windows import SCHEMA, TEXTS

DEVICES, BATCHES, FIELDS, CHUNK = 20_000, 6, 16, 1_000
NEW_BATCHES = 16
"""Of new keys: a million at the end."""
SHARDS = 12
_MEASURES = ("temperature", "humidity")
START_MS, _WINDOW_MS = 1_790_000_040_000, 60_000
VIEW: Mapping[str, Any] = {"name": "device", "by": ["device"], "window": "1 m"}


def measure(folder: Path) -> dict[str, float]:
    """Microseconds a row, of Redis' CPU and in all: the median batch of the service and of plain commands."""
    with Redis(folder) as server, server.client() as client:
        begin_term(sink(server.url, 0, START_MS))
        written, plain = [], []
        for batch in range(BATCHES):
            target, rows = sink(server.url, batch, START_MS), _output(batch)  # made before the clock runs
            written.append(timed([server], 3 * DEVICES, publish, target, rows))
            plain.append(timed([server], 3 * DEVICES, _hset, client, batch))
    return _figures("redis", row=written[1:], hset=plain[1:])


def measure_new(folder: Path) -> dict[str, float]:
    """Microseconds a row of a new key, as `measure`: the median batch after NEW_BATCHES / 2."""
    with Redis(folder / "new") as written_to, Redis(folder / "plain") as plain_to, plain_to.client() as client:
        begin_term(sink(written_to.url, 0, START_MS))
        written, plain = [], []
        for batch in range(NEW_BATCHES):
            first = batch * DEVICES
            target, rows = sink(written_to.url, batch, START_MS), _output(batch, first)
            written.append(timed([written_to], 3 * DEVICES, publish, target, rows))
            plain.append(timed([plain_to], 3 * DEVICES, _hset, client, batch, 3 * first))
    return _figures("redis", new_row=written[NEW_BATCHES // 2 :], new_hset=plain[NEW_BATCHES // 2 :])


def measure_cluster(folder: Path) -> dict[str, float]:
    """Microseconds a row in all, and of the CPU of the busiest Redis: the median batch of each store."""
    with Redis(folder / "one") as one, Redis(folder / "shards") as several, RedisCluster(folder, replicas=0) as cluster:
        stores: dict[str, tuple[str, list[Redis], dict[str, Any]]] = {
            "one": (one.url, [one], {}),
            "shards": (several.url, [several], {"shards": SHARDS}),
            "cluster": (cluster.url, list(cluster.nodes), {"shards": SHARDS, "cluster": True}),
        }
        for number, prefix in enumerate(contract.prefixes("tidemark", SHARDS)):  # as the operator's page says
            key, node = f"{prefix}:epoch", cluster.nodes[number % len(cluster.nodes)]
            if cluster.primary_of(key) is not node:
                cluster.move_slot(key, node)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in stores}
        for batch in range(BATCHES):
            rows = _output(batch)
            for name, (url, servers, options) in stores.items():
                target = sink(url, batch, START_MS, **options)
                if not batch:
                    begin_term(target)
                times[name].append(timed(servers, 3 * DEVICES, publish, target, rows))
    return _figures("busiest_redis", **{name: pairs[1:] for name, pairs in times.items()})


def ratios(rows: dict[str, float]) -> dict[str, float]:
    """Return a row's time and its CPU time of Redis, each as a multiple of plain commands."""
    return {
        "row_to_hset": rows["row_us"] / rows["hset_us"],
        "row_redis_to_hset_redis": rows["row_redis_us"] / rows["hset_redis_us"],
        "new_row_to_new_hset": rows["new_row_us"] / rows["new_hset_us"],
        "new_row_redis_to_new_hset_redis": rows["new_row_redis_us"] / rows["new_hset_redis_us"],
    }


def cluster_ratios(rows: dict[str, float]) -> dict[str, float]:
    """Rows a second on three primaries over those on one Redis; the same if each Redis and the writer had cores of their own.

    With cores enough, a batch takes no less than the busiest Redis' CPU, and no less than the writer's own time for it, which is
    what the batch takes here less the CPU of all Redis.
    """
    writer = rows["one_us"] - rows["one_busiest_redis_us"]
    alone, spread = (max(writer, rows[f"{name}_busiest_redis_us"]) for name in ("one", "cluster"))
    return {
        "redis_cluster_publish": rows["one_us"] / rows["cluster_us"],
        "redis_cluster_publish_with_cores": alone / spread,
        "redis_cluster_busiest": rows["cluster_busiest_redis_us"] / rows["one_busiest_redis_us"],
    }


def timed(servers: Sequence[Redis], rows: int, act: Callable[..., object], *arguments: Any) -> tuple[float, float]:
    """Return microseconds a row: of the CPU of the busiest server, and in all."""
    before, began = list(map(_cpu_s, servers)), time.perf_counter()
    act(*arguments)
    seconds = time.perf_counter() - began
    used = max(after - earlier for after, earlier in zip(map(_cpu_s, servers), before, strict=True))
    return used / rows * 1e6, seconds / rows * 1e6


def _cpu_s(server: Redis) -> float:
    with server.client() as client:
        used: Any = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def _figures(of: str, **times: Sequence[tuple[float, float]]) -> dict[str, float]:
    """The medians by name, of the CPU of `of` and in all."""
    return {
        f"{name}_{part}us": round(float(np.median(values)), 2)
        for name, pairs in times.items()
        for part, values in zip((f"{of}_", ""), zip(*pairs, strict=True), strict=True)
    }


def sink(url: str, batch: int, watermark_ms: int, view: Mapping[str, Any] = VIEW, **options: Any) -> Sink:
    """Return the sink of a batch, with one view; `options` are of Redis."""
    document = {
        "service": {"checkpoint": "checkpoint"},
        "kafka": {"bootstrap": "none", "topics": ["readings"]},
        "input": {"measures": {name: name for name in _MEASURES}},
        "views": [view],
        "redis": {"url": url, "chunk": CHUNK, **options},
    }
    # As in a term that goes on where the last one was (docs/decisions/0021-rows-that-are-not-compared.md).
    after = (1, batch - 1) if batch else None
    micro_batch = MicroBatch(1, batch, watermark_ms, {}, {"readings": {0: batch}})
    return Sink(settings.parse(document), micro_batch, policy=WritePolicy.stream(after, 0))


def begin_term(sink: Sink) -> None:
    """Take an epoch, so that the sink may write."""
    lease = Lease(sink.settings, "bench")
    lease.acquire()
    lease.release()


def publish(sink: Sink, rows: pa.RecordBatch) -> None:
    """Write a batch, and progress."""
    sink.write([rows])
    sink.progress()


def _output(batch: int, first: int = 0) -> pa.RecordBatch:
    """The rows of a batch of DEVICES devices from number `first` on."""
    return pa.RecordBatch.from_pylist([{"kind": CHANGES, "payload": codec.pack_changes(_changes(batch, first))}])


def _changes(batch: int, first: int) -> Changes:
    last = START_MS + 1_000 * batch
    value = np.random.default_rng(batch).normal(20.0, 3.0, DEVICES)
    devices = pa.array([f"device-{number:06d}" for number in range(first, first + DEVICES)])
    same: dict[str, Any] = {
        "start": START_MS, "end": START_MS + _WINDOW_MS, "count": batch + 1, "first": START_MS, "last": last,
        "last_seen": last, "session": START_MS, "state": "open", "status": "online", "reason": "", "merged_into": None,
        "view": "device", "measure": _MEASURES[0],
        **{f"{name}.count": batch + 1 for name in _MEASURES}, **{f"{name}.at": last for name in _MEASURES},
    }  # fmt: skip

    def table(schema: pa.Schema) -> pa.Table:
        columns = []
        for field in schema:
            text = pa.string() if field.name in TEXTS else field.type
            if field.name in {"device", "key"}:
                column = devices
            elif field.name in same:
                column = pa.array([same[field.name]] * DEVICES, text)
            else:
                column = pa.array(value)
            columns.append(column.cast(field.type))
        return pa.Table.from_arrays(columns, schema=schema)

    return Changes(table(session_schema(_MEASURES)), table(status_schema(_MEASURES)), table(SCHEMA))


def _hset(client: Any, batch: int, first: int = 0) -> None:
    names = [f"field{number}" for number in range(FIELDS)]
    for start in range(first, first + 3 * DEVICES, CHUNK):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, start + CHUNK):
            key = f"plain:{number}"
            pipeline.hset(key, mapping=dict.fromkeys(names, 1_790_000_000_000 + batch))
            pipeline.pexpire(key, 86_400_000)
        pipeline.execute()

"""soak, batches: hours of the service, to find what grows. `make soak FOR=2h` plays both.

Each quantity gets its change per 1,000 batches, with its error: what grows without a bound ends the service one day.
`make soak FOR=2h KEEP=1` again and again plays both in parts: on one checkpoint, with one topic, Redis and outlets. The slopes,
the rules and the oracle are of all parts together.
"""

import contextlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from redis.exceptions import RedisError

from load.faults.by_hand import one_by_one
from load.faults.history import read
from load.faults.row import row
from load.faults.rows.outlets_away import DIFFERENCES, add_outlets, outlets_caught_up
from load.faults.rows.worker_killed import python_workers
from load.faults.run import Figures, Run, parts_of
from load.faults.slopes import slopes
from load.servers.dashboard import Dashboard
from load.servers.postgres import Postgres
from load.servers.server_process import HOST, PATIENCE, Repeated
from load.servers.web import answer
from load.testbed import PARTITIONS, by_label

DEVICES, GROWTH = 10_000, 0.01
"""The devices at the start, and how many more there are each hour."""
LONGEST_H = 24
DEFAULT_S = 300.0
SAMPLE_S, PAGE_S = 10.0, 2.0
LONGEST_SILENCE_S = 60.0
FAULT_EVERY_S = 600.0
PARTS = 6
"""Of a run that is shorter than an hour: it still has one fault of each kind."""

_SUMMED = ("open_files", "sockets", "threads", "memory_bytes")
_AS_THEY_ARE = (
    "tidemark_python_workers",
    'tidemark_jvm_heap_bytes{kind="used"}',
    'tidemark_jvm_direct_bytes{owner="java"}',
    'tidemark_jvm_direct_bytes{owner="netty"}',
    'tidemark_temporary_files{folder="java"}',
    'tidemark_temporary_files{folder="spark"}',
    "tidemark_state_bytes",
    "tidemark_state_memory_bytes",
)


@row(
    "soak",
    "hours with a fault every ten minutes, three outlets and an open page",
    rate=1_000,
    devices=int(DEVICES * (1 + GROWTH * LONGEST_H)),
    testbed={"redis": {"appendonly": "yes"}},
)
def soak(run: Run) -> Figures:
    """10,000 devices, of which 1 % are new each hour; five minutes without --for."""
    database = run.part(Postgres(run.folder / "postgres", keep=run.keep))
    add_outlets(run, database, run.folder / "files")
    broker, redis = run.testbed.broker, run.testbed.redis
    faults: list[tuple[str, Callable[[], None]]] = [
        ("broker killed", lambda: one_by_one(broker.kill, broker.start)),
        ("Redis killed", lambda: one_by_one(redis.kill, redis.start)),
        ("database killed", lambda: one_by_one(database.kill, database.start)),
        ("Python worker killed", lambda: run.nemesis.pick(python_workers([run.testbed.service_pid])).kill()),
        ("broker frozen", lambda: one_by_one(broker.pause, lambda: run.run_on(10), broker.resume)),
    ]
    run.start()
    with ExitStack() as cleanup:
        page = cleanup.enter_context(
            Dashboard(run.folder, run.testbed.redis.url, f"http://{HOST}:{run.testbed.metrics_port}")
        )
        cleanup.enter_context(Repeated(PAGE_S, lambda: _look_at(page)))
        cleanup.enter_context(Repeated(SAMPLE_S, lambda: _sample(run)))
        seconds = _seconds(run)
        every_s = min(FAULT_EVERY_S, seconds / PARTS)
        for number in range(max(1, int(seconds / every_s))):
            hours = (sum(run.parts) + number * every_s) / 3600
            load = run.load(options=["--devices", str(int(DEVICES * (1 + GROWTH * hours)))])
            run.run_on(every_s)
            if number % PARTS == PARTS - 1:
                run.kill_driver(run.nemesis.pick((0, 1)))
            else:
                name, cause = faults[number % PARTS]
                with run.fault(name):
                    cause()
            run.recover()
            run.steady()  # the history needs a lag that is back while there is load
            run.unload(load)
        run.load()
        run.steady()  # a generator that is ended before it sends has no summary
        run.drain()
        outlets_caught_up(run)
    run.stop()
    verdict = run.compare()
    found = {name: verdict.kinds[f"outlet.{name}"] for name in DIFFERENCES}
    return {**found, **_slopes(run), "differences": verdict.mismatches + sum(found.values())}


@row(
    "batches",
    "as many batches as the machine makes, without a fault",
    rate=200,
    devices=100,
    testbed={"sections": {"service": {"trigger": "0 s"}}, "redis": {"appendonly": "yes"}},
)
def batches(run: Run) -> Figures:
    """A hundred devices; five minutes without --for."""
    run.start()
    run.load()
    with Repeated(SAMPLE_S, lambda: _sample(run)):
        run.run_on(_seconds(run))
        run.drain()
    run.stop()
    return {**_slopes(run), "differences": run.compare().mismatches}


def _seconds(run: Run) -> float:
    return run.seconds or DEFAULT_S


def _look_at(page: Dashboard) -> None:
    for path in ("/", "/fleet", "/views"):
        answer(page.url + path)


def _sample(run: Run) -> None:
    """Add what the service and its stores use now to the history; nothing while the service does not answer."""
    samples = run.metrics()
    if not samples.get("tidemark_query_running"):
        return
    values = {name.removeprefix("tidemark_"): samples[name] for name in _AS_THEY_ARE if name in samples}
    for what in _SUMMED:
        of_processes = by_label(samples, f"tidemark_process_{what}")
        values |= {f"{what}.{process}": value for process, value in of_processes.items()}
        values[what] = sum(of_processes.values())
    count, total = (
        samples.get('tidemark_batch_seconds_count{phase="total"}'),
        samples.get('tidemark_batch_seconds_sum{phase="total"}'),
    )
    if count and total is not None:
        values["batch_mean_s"] = total / count
    for name, folder in (("checkpoint", run.testbed.folder / "checkpoint"), ("outlet", run.folder / "files")):
        with contextlib.suppress(OSError):  # a folder that is removed while it is read: the next sample has it
            files = [each for each in folder.rglob("*") if _is_file(each)]
            values |= {f"{name}_files": len(files), f"{name}_bytes": sum(map(_size, files))}
    for name, value in samples.items():
        if name.startswith("tidemark_checkpoint_files{"):
            values[name.removeprefix("tidemark_")] = value
    values["log_bytes"] = _size(run.testbed.log)
    with contextlib.suppress(RedisError, OSError), run.testbed.redis_client() as client:
        values["redis_keys"] = client.dbsize()
        values["redis_memory_bytes"] = client.info("memory")["used_memory"]
    epoch, batch = run.observer.progress
    run.history.add("sample", epoch=epoch, batch=batch, values=values)


def _is_file(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.is_file()
    return False


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _slopes(run: Run) -> Figures:
    measured = slopes(read(run.history.path))
    newest = {each["what"]: each["at"] for each in read(run.history.path) if each["what"] in {"sample", "progress"}}
    silent_s = (newest.get("progress", 0) - newest.get("sample", 0)) / 1000
    if silent_s > LONGEST_SILENCE_S * PATIENCE:
        run.violation(
            "observed", f"the last sample is {silent_s:.0f} s older than the last batch: the slopes are of a part"
        )
    seconds = parts_of(run.history.path, run.setup.id, run.seed)
    open_files = measured.get("open_files")
    if open_files is None:
        run.violation("observed", "the run was too short for a slope of the open files")
    elif abs(open_files.per_1000_batches) > 1 and not open_files.is_zero:
        text = f"open files change by {open_files.per_1000_batches} per 1,000 batches, and 1 is allowed"
        run.violation("bounded", text)
    return {
        "open_files_per_1000_batches": open_files.per_1000_batches if open_files else None,
        "grows": [name for name, slope in measured.items() if not slope.is_zero],
        "slopes": {name: asdict(slope) for name, slope in measured.items()},
        "partitions": PARTITIONS,
        "parts": len(seconds),
        "hours": round(sum(seconds) / 3600, 2),
    }

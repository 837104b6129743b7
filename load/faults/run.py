"""One run of a row: the testbed with everything around it, and what a row needs to make things go wrong on it."""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import psutil
from redis.exceptions import RedisClusterException, RedisError

from load.demo import SECTIONS, VIEWS
from load.faults.history import Entry, History, read
from load.faults.inputs import TRAFFIC, sections
from load.faults.nemesis import Nemesis
from load.faults.observer import Observer
from load.faults.recovery import BACK_S, Recovers
from load.faults.rules import Observed
from load.fleet.fleet import Fleet, FleetSettings
from load.instance import Instance
from load.judge import published
from load.judge.compare import compare
from load.judge.verdict import Verdict
from load.servers.certificates import Authority
from load.servers.child_process import Child
from load.servers.proxy import Proxy
from load.servers.server_process import HOST, PATIENCE, ServerProcess, until
from load.testbed import POLL_S, ROOT, Testbed, kill_tree, total
from schemas import contract
from service.errors import SetupError

Figures: TypeAlias = dict[str, Any]
"""What a row measured, by name; goes to the JSON beside the figures that every row has."""

T = TypeVar("T")
P = TypeVar("P", bound=ServerProcess)

STARTS_S = 180.0
STEADY_BATCHES = 10
DROPOUT_MS, DROPOUT_EVERY_MS = 16_000, 40_000
"""Longer than the session gap, so that sessions end and begin again within a short run."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Parts of a row's run: `rate` is in records a second, `testbed` are Testbed's keyword arguments.

    `inputs` are 1 to 3 (inputs.py). With `proxy` the service reaches Redis through run.proxy, which can make it slow. With `tls`
    the broker has listeners with TLS, too. With `update_every` open values of all views and of sessions wait so long, and also
    those of a backlog.
    """

    id: str
    title: str
    rate: float = 2_000.0
    devices: int = 1_000
    testbed: Mapping[str, Any] = field(default_factory=dict)
    proxy: bool = False
    inputs: int = 1
    tls: bool = False
    update_every: str = ""


def _waiting(
    views: Sequence[Mapping[str, Any]], given: Mapping[str, Any], update_every: str
) -> dict[str, Sequence[Any] | Mapping[str, Any]]:
    """Return views and sections by which all open values wait so long."""
    sections = {name: {**given.get(name, {})} for name in {*given, "service", "sessions"}}
    sections["service"]["catch_up_update_every"] = sections["sessions"]["update_every"] = update_every
    return {"views": [{**view, "update_every": update_every} for view in views], "sections": sections}


class Load:
    """Generators in processes of their own, one for each input, for as long as they are not stopped.

    `rate` is in records a second. `options` are more of the generators' own.
    """

    def __init__(self, run: "Run", number: int, rate: float, options: Sequence[str]) -> None:
        self.number = number
        self.rate = sum(rate * each.share / each.array for each in run.traffic)
        self._testbed = run.testbed
        self._children: list[tuple[Child, str]] = []
        for each in run.traffic:
            log, own = f"generator-{number}-{each.topic}", (*each.options, *options)
            child = run.testbed.start_generator(rate * each.share, *own, topic=each.topic, log=log)
            self._children.append((child, log))

    def stop(self) -> list[dict[str, Any]]:
        """End them once all that they have sent is acknowledged; their summaries, in the order of traffic."""
        for child, _ in self._children:
            child.terminate()
        return [self._testbed.end_generator(child, log) for child, log in self._children]

    def kill(self) -> None:
        for child, _ in self._children:
            kill_tree(child)


def parts_of(path: Path, row: str, seed: int) -> tuple[float, ...]:
    """Return the seconds of each part that a history has. Raises SetupError if it is of another row or another seed."""
    spans: list[list[int]] = []
    for entry in read(path) if path.exists() else ():
        if entry["what"] == "run":
            if (entry["row"], entry["seed"]) != (row, seed):
                what = f"{path} is of the row {entry['row']} with the seed {entry['seed']}, not of {row} with {seed}"
                raise SetupError(what, remedy="Name another folder, or the same row and seed")
            spans.append([entry["at"], entry["at"]])
        spans[-1][1] = entry["at"]
    return tuple((end - begin) / 1000 for begin, end in spans)


class Run:
    """A row's run in `folder`, which is emptied. With `keep` the run goes on with what a former part has left there, under one
    history, and leaves everything for the next part. Use it in a `with` block, then `finish` it; see load/faults/__init__.py."""

    def __init__(
        self,
        setup: Setup,
        seed: int,
        *,
        short: bool = False,
        times: int | None = None,
        seconds: float | None = None,
        folder: Path | None = None,
        only: str = "",
        keep: bool = False,
    ) -> None:
        """`only` chooses a part of a row that has parts."""
        self.setup, self.seed, self.short, self.only = setup, seed, short, only
        self.seconds = seconds
        """How long a row that has no end of its own goes on, where the command line says it."""
        self._times = times
        self.folder = folder or ROOT / ".build" / "faults" / setup.id
        settings = FleetSettings(
            devices=setup.devices,
            rate=setup.rate,
            dropout_share=0.2,
            dropout_ms=DROPOUT_MS,
            dropout_every_ms=DROPOUT_EVERY_MS,
            evolved=0.3,
        )
        self.traffic = TRAFFIC[setup.inputs]
        self.keep = keep
        self.parts = parts_of(self.folder / "history.jsonl", setup.id, seed) if keep else ()
        options = {"views": VIEWS, "master": "local[2]", "keep": keep, **setup.testbed}
        options["sections"] = sections(setup.testbed.get("sections", SECTIONS), setup.inputs)
        if setup.update_every:
            options |= _waiting(options["views"], options["sections"], setup.update_every)
        if setup.tls:
            options["authority"] = Authority(self.folder.absolute().with_name(f"{self.folder.name}-authority"))
        self.testbed = Testbed(self.folder, Fleet(seed, settings), **options)
        self.proxy = Proxy(HOST, self.testbed.redis.port) if setup.proxy else None
        if self.proxy is not None:
            self.testbed.settings["redis"]["url"] = f"redis://{HOST}:{self.proxy.port}/0"
        self.is_supervised = bool(options.get("supervised") or options.get("supervisor"))
        self.shards = int(self.testbed.settings["redis"].get("shards", 1))
        self._recovers = Recovers()
        self._observed = Observed()
        self.history = History(self.folder / "history.jsonl", self._heard, keep=keep)
        self.nemesis = Nemesis(seed)
        self.observer = Observer(
            self.testbed, self.history, seed, pids=self.pids, metrics=self.metrics, keep=bool(self.parts)
        )
        self.sent = 0
        self.verdict: Verdict | None = None
        self.stale_refused = 0
        self._environment: Mapping[str, str] | None = None
        self._loads: list[Load] = []
        self._instances: list[Instance] = []
        self._parts = contextlib.ExitStack()
        self._numbers = itertools.count(1)
        self._is_started = False

    def __enter__(self) -> "Run":
        facts: Figures = {"rate": self.setup.rate, "shards": self.shards}
        facts |= {"inputs": self.setup.inputs, "update_every": self.setup.update_every}
        self.note("run", row=self.setup.id, seed=self.seed, short=self.short, **facts)
        try:
            if self.proxy is not None:
                self._parts.enter_context(self.proxy)
            self.testbed.start()
            self.observer.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for load in self._loads:
            load.kill()
        for instance in self._instances:
            instance.kill()
        self.observer.stop()
        self.testbed.close()
        self._parts.close()
        self.history.close()

    # What a row does.

    def times(self, full: int, short: int) -> int:
        """How often a fault is to be repeated: as the command line says, else by the run's length."""
        return self._times if self._times is not None else short if self.short else full

    def start(self, environment: Mapping[str, str] | None = None, *, wait: bool = True) -> None:
        """Start the service with these variables added; returns when its query runs, or at once without `wait`."""
        self._environment = environment
        self._is_started = True
        self.testbed.start_service(environment)
        if wait:
            self.wait(lambda: self.testbed.metrics().get("tidemark_query_running"), STARTS_S, "the query to start")

    def begin(self, batches: int = STEADY_BATCHES) -> None:
        """Start the service and the load; returns when some batches with load have been published."""
        self.start()
        self.load()
        self.steady(batches)

    def stop(self) -> None:
        """Stop the service in order; another status than 0 is a violation."""
        status = self.testbed.stop_service()
        self._is_started = False
        self.note("stopped", status=status)
        if status:
            self.violation("stop", f"the service ended with status {status}: {self.testbed.last_words()}")

    def start_again(self) -> None:
        """Start the service again as a supervisor does; nothing for a supervised service."""
        if not self.is_supervised:
            self.testbed.kill_service()
            self.testbed.start_service(self._environment)

    def kill_driver(self, which: int = 0) -> None:
        """SIGKILL to the driver's JVM (0) or its Python (1), as soon as there is one, and start it again."""
        pids: list[int] = []

        def has_driver() -> bool:
            with contextlib.suppress(SetupError, psutil.Error):
                pids[:] = self.driver_pids()
            return bool(pids)

        self.wait(has_driver, STARTS_S, "a driver to kill")
        with self.fault("driver killed", process=("JVM", "Python")[which], restarts=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[which], signal.SIGKILL)
            self.start_again()

    def until(self, condition: Callable[[], T], within_s: float, what: str) -> T:
        """Like `wait`, for times at which there may be no service."""
        return until(condition, within_s * PATIENCE, what, every_s=POLL_S)

    def instance(
        self, name: str, checkpoint: str = "checkpoint", config: Path | None = None, tree: Path = ROOT
    ) -> Instance:
        """Return another service, not started yet, in addition to the testbed's; `checkpoint` is a folder of the run.

        It has the testbed's settings, or those of the file `config`, and runs from this tree, or from another one.
        """
        made = Instance(self.testbed, name, self.folder / checkpoint, config, tree)
        self._instances.append(made)
        return made

    def end(self, instance: Instance) -> None:
        """Stop an instance in order; another status than 0 is a violation."""
        status = instance.stop()
        if status:
            self.violation("stop", f"{instance.name} ended with status {status}: {instance.last_words()}")

    def part(self, part: P) -> P:
        """One more part of the world, started now; it ends with the run."""
        self._parts.enter_context(part)
        return part

    def load(self, rate: float | None = None, options: Sequence[str] = ()) -> Load:
        """Start a generator for each input, at the row's rate together by default; several loads add up.

        `options` are more of the generators' own.
        """
        load = Load(self, next(self._numbers), rate or self.setup.rate, options)
        self._loads.append(load)
        self.note("load", phase="begin", id=load.number, rate=load.rate)
        return load

    @property
    def loads(self) -> list[Load]:
        return list(self._loads)

    def unload(self, load: Load) -> None:
        self.note("load", phase="end", id=load.number)
        self._loads.remove(load)
        for each, summary in zip(self.traffic, load.stop(), strict=True):
            self.note("sent", id=load.number, topic=each.topic, **summary)
            self.sent += summary["sent"]
            if summary["failed"] or summary["waiting"]:
                text = f"the generator does not know whether all of its records are there: {summary}"
                self.violation("observed", text)

    def note(self, what: str, **facts: Any) -> None:
        self.history.add(what, **facts)
        if what not in {"sent", "verdict", "contract"}:
            print(f"  {what} {' '.join(f'{name}={fact}' for name, fact in facts.items())}", flush=True)

    def violation(self, rule: str, text: str) -> None:
        """Note a violation that no rule finds."""
        self.note("violation", rule=rule, text=text)

    @contextlib.contextmanager
    def fault(self, name: str, **facts: Any) -> Iterator[None]:
        """What happens inside is a fault. `restarts=True`: the lag is back only under a new epoch."""
        self.note("fault", phase="begin", name=name, **facts)
        try:
            yield
        finally:
            self.note("fault", phase="end", name=name, **facts)

    def steady(self, batches: int = STEADY_BATCHES) -> None:
        """Until some batches with load have been published."""
        begun = self.observer.progress[1]
        self.wait(lambda: self.observer.progress[1] >= begun + batches, STARTS_S, f"{batches} batches")

    def run_on(self, seconds: float, began: float | None = None) -> None:
        """Let the load go on until so long after `began`, by default now; a service that ends meanwhile is an error."""
        end = (began or time.monotonic()) + seconds
        self.wait(lambda: time.monotonic() >= end, seconds + 1, "time to pass")

    def let_pass(self, seconds: float, began: float | None = None) -> None:
        """Like `run_on`, for times at which there may be no service."""
        time.sleep(max(0.0, (began or time.monotonic()) + seconds - time.monotonic()))

    def wait_in_a_batch(self) -> None:
        """Wait until a batch has just begun: a writer that is frozen there has something left to write."""
        running = "tidemark_batch_running_seconds"
        self.until(lambda: 0 < self.testbed.metrics().get(running, 0) < 0.5, 30, "a batch to begin")

    def peak_mb(self) -> float:
        """Return the most memory that the service has taken."""
        return max((entry["mb"] for entry in read(self.history.path) if entry["what"] == "memory"), default=0.0)

    def restarts(self) -> int:
        """Return how often a failure has restarted the query in this life of the service."""
        return int(total(self.metrics(), "tidemark_query_restarts_total"))

    def require_same_query(self, process: int, epoch: int, what: str) -> None:
        """Note a violation unless the service is this process, in this epoch, and has never restarted its query."""
        now = self.testbed.service_pid, self.observer.epoch, self.restarts()
        if now != (process, epoch, 0):
            text = f"{what}: process {process} became {now[0]}, epoch {epoch} became {now[1]}, {now[2]} restarts of the query"
            self.violation("P6", text)

    def wait_level(self, offsets: Callable[[], Mapping[str, int]], what: str) -> None:
        """Until `offsets` of a service have reached the ends that the topic had when this was called."""
        ends = {str(partition): end for partition, end in self.observer.ends().items()}

        def is_level() -> bool:
            read = offsets()
            return all(read.get(partition, 0) >= end for partition, end in ends.items())

        self.wait(is_level, STARTS_S, what)

    def recover(self, within_s: float = 2 * BACK_S) -> None:
        """Until the lag is back after the last fault, as P8 defines it; P8 itself allows less time than this."""
        self.wait(lambda: not self.is_recovering, within_s, "the lag to be back")

    @property
    def is_recovering(self) -> bool:
        """Whether the lag is not yet back after the last fault."""
        return self._recovers.is_open

    def wait(self, condition: Callable[[], T], within_s: float, what: str) -> T:
        """Testbed.wait: SetupError when the service has ended for good, or the time is over."""
        return self.testbed.wait(condition, within_s, what)

    def drain(self) -> None:
        """End the load and wait until all of it is published, and what it closes is closed.

        The load goes on until there is enough to judge by.
        """
        if self._loads:
            self.wait(lambda: not self._observed.lacking, STARTS_S, "enough to judge by")
        for load in self._loads[:]:
            self.unload(load)
        for topic in self.testbed.topics:
            self.testbed.wait_published(self.observer.ends(topic), STARTS_S, topic)

    def compare(self, **options: Any) -> Verdict:
        """Note the oracle's verdict on a service at rest; `options` go to load.judge.compare."""
        with self.testbed.redis_client() as client:
            self.verdict = self.judge(self.testbed.config, client, "tidemark", self.shards, **options)
        return self.verdict

    def judge(self, config: Path, client: contract.Client, prefix: str, shards: int = 1, **options: Any) -> Verdict:
        """Note the oracle's verdict on what a service with these settings has under a prefix."""
        verdict = compare(config, **options)
        facts = {each.name: getattr(verdict, each.name) for each in fields(verdict)}
        self.note("verdict", ok=verdict.ok, mismatches=verdict.mismatches, **facts)
        self.note("contract", violations=contract.check(client, prefix, shards)[:20])
        return verdict

    def finish(self, figures: Figures) -> Figures:
        """After the row: at rest, compared, counted."""
        if self._is_started:
            self.drain()
            self.stop()
            self.compare()
        self.count_refused()
        return {**figures, "sent": self.sent}

    def count_refused(self) -> int:
        """Writes of stale epochs that Redis refused, by its own count; a Redis that restarts begins at 0 again."""
        with contextlib.suppress(RedisError, RedisClusterException), self.testbed.redis_client() as client:
            is_cluster = self.testbed.settings["redis"].get("cluster")
            nodes = map(client.get_redis_connection, client.get_primaries()) if is_cluster else [client]
            errors = [node.info("errorstats").get("errorstat_FENCED", {}) for node in nodes]
            self.stale_refused = sum(int(each.get("count", 0)) for each in errors)
            self.note("refused", writes=self.stale_refused)
        return self.stale_refused

    # What is there.

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of the instance whose query runs, or of the testbed's service if no query runs."""
        own = self.testbed.metrics()
        for samples in (own, *(instance.metrics() for instance in self._instances)):
            if samples.get("tidemark_query_running"):
                return samples
        return own

    def finals(self) -> dict[str, str]:
        """The count of every final window and closed session, by key; it never changes again."""
        with self.testbed.redis_client(encoding_errors="surrogateescape") as client:
            values = published.hashes(client, "tidemark", ("window", "session"), shards=self.shards)
            return {
                key: fields["count"]
                for key, fields in values
                if fields["closed_by"] and fields.get("state") != "merged"
            }

    def newest_commit(self) -> int:
        """The newest batch that the testbed's checkpoint has committed, -1 for none."""
        files = (self.testbed.folder / "checkpoint" / "commits").iterdir()
        return max((int(path.name) for path in files if path.name.isdecimal()), default=-1)

    def pids(self) -> list[int]:
        """The service's processes whose children are the rest of it."""
        with contextlib.suppress(SetupError, psutil.Error):
            if self.is_supervised:
                return [self.testbed.supervisor.driver_pids()[0], *self.testbed.supervisor.executor_pids()]
            if self._is_started:
                return [self.testbed.service_pid]
        return [instance.pid for instance in self._instances if instance.is_running]

    def driver_pids(self) -> tuple[int, int]:
        """The driver's JVM and its Python; raises SetupError when they do not run."""
        if self.is_supervised:
            return self.testbed.supervisor.driver_pids()
        jvm = self.testbed.service_pid
        for child in psutil.Process(jvm).children():
            with contextlib.suppress(psutil.Error):  # others may have ended, and wait to be reaped
                if any(argument.endswith("daemon.py") for argument in child.cmdline()):
                    return jvm, child.pid
        raise SetupError(f"The driver {jvm} has no Python yet")

    def _heard(self, entry: Entry) -> None:
        for rule in (self._recovers, self._observed):
            for _ in rule.take(entry):
                pass  # the checker says it, from the history

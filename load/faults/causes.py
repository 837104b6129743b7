"""Causes of failure: each is brought about on the real service, which must name it, and nothing else.

A cause has the code and the exit status that docs/operator-reference.md promises for it, what the message must say of the cause
and of the remedy, and a function that brings it about on a `Stage`. Each cause has a topic, a checkpoint and a prefix of its own,
on the run's one broker and one Redis.
"""

import contextlib
import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from load.faults import raw
from load.faults.run import STARTS_S, Run
from load.servers.server_process import Repeated
from load.testbed import PARTITIONS, ROOT
from service.clock import now_ms
from service.errors import SetupError, TidemarkError

_NAMED = re.compile(r"(^tidemark|WARNING [\w.]+): ([A-Z][A-Z_]+): (.*(?:\n  .*)*)$", re.MULTILINE)
_RETRIED = re.compile(r"\. Trying again in \d+ s$")
_EVERY_S = 0.1
FAILS_S = 90.0
_PAGE = ROOT / "docs" / "operator-reference.md"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the service said: its exit status, None while it goes on, the code, and the text of cause and remedy."""

    status: int | None
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Cause:
    """Patterns of cause and remedy. Without `ends` the service retries; with `runs` it runs before `play` breaks something."""

    name: str
    family: type[TidemarkError]
    says: str
    remedy: str
    play: Callable[["Stage"], AbstractContextManager[Any]]
    ends: bool = True
    runs: bool = False
    passes: bool = True
    """Whether what the service retries passes when `play` is over; else it needs other settings."""
    by_spark: int = 0
    """The exit status of an end that is Spark's own, without a word of the service."""
    also: tuple[str, ...] = ()
    """Codes that the service may show before: a broker that goes away is away before its topic is gone."""

    def problems(self, outcome: Outcome, codes: list[str]) -> list[str]:
        """Return the differences from what is promised; `codes` are all that the service has named."""
        status = (self.by_spark or self.family.status) if self.ends else None
        code = "" if self.by_spark else self.family.code
        problems = [] if outcome.status == status else [f"status {outcome.status}, not {status}"]
        if outcome.code != code:
            problems.append(f"code {outcome.code}, not {code}")
        for name, pattern in (("cause", self.says), ("remedy", self.remedy)):
            if not re.search(pattern, outcome.text):
                problems.append(f"the {name} lacks {pattern!r}")
        others = {*codes} - {self.family.code, *self.also}
        return [*problems, *(f"it accused {each}" for each in sorted(others))]


class Stage:
    """Where one cause is played: the run's testbed with other settings, and readings that arrive all the time."""

    def __init__(self, run: Run, number: int) -> None:
        self.run, self.testbed = run, run.testbed
        self.name = f"cause-{number:02d}"
        self.options: tuple[str, ...] = ()
        """Of spark-submit."""
        self.environment: Mapping[str, str] = {}
        self.command: Outcome | None = None
        """The outcome of a cause that is a command's."""
        self._begin = 0
        self._is_started = False

    @property
    def checkpoint(self) -> Path:
        return self.testbed.folder / self.name

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """A topic, a checkpoint and a prefix of its own, and a service that has ended at the end."""
        self.testbed.broker.create_topic(self.name, PARTITIONS)
        sections = {
            "service": {"checkpoint": str(self.checkpoint)},
            "kafka": {"topics": [self.name], "group": self.name},
            "redis": {"prefix": self.name, "retry_for": "2 s"},
            "sessions": {"buckets": 2},
        }
        with self.settings(**sections):
            self.testbed.log.unlink(missing_ok=True)
            try:
                yield
            finally:
                self.testbed.kill_service()
                with contextlib.suppress(FileNotFoundError):  # of a command
                    self.testbed.log.rename(self.testbed.folder / f"{self.name}.log")
        self.testbed.broker.delete_topic(self.name)

    @contextlib.contextmanager
    def settings(self, **sections: Any) -> Iterator[None]:
        """Other settings: a section's keys are added, one that is None is removed, a list of sections is replaced."""
        before = copy.deepcopy(self.testbed.settings)
        for name, section in sections.items():
            if isinstance(section, Mapping):
                keys = {**before.get(name, {}), **section}
                self.testbed.settings[name] = {key: value for key, value in keys.items() if value is not None}
            else:
                self.testbed.settings[name] = section
        self.testbed.write_settings()
        try:
            yield
        finally:
            self.testbed.settings = before
            self.testbed.write_settings()

    def start(self) -> None:
        """Start the service; returns at once."""
        self._begin, self._is_started = self._size(), True
        self.testbed.submit_options = self.options
        self.testbed.start_service(self.environment)

    def start_if_needed(self) -> None:
        """Start the service unless the cause has started it, or is a command's."""
        if not self._is_started and self.command is None:
            self.start()

    def wait_running(self, batches: int = 2) -> None:
        """Until some batches are published."""
        self.run.wait(lambda: self.batch() >= batches, STARTS_S, f"{batches} batches of {self.name}")
        self._begin = self._size()

    def stop(self) -> None:
        """End the service in order: a cause begins while it is down."""
        self.testbed.stop_service()

    def batch(self) -> int:
        """The number of the newest published batch, -1 for none."""
        with self.testbed.redis.client() as client:
            return int(client.hget(f"{self.name}:progress", "batch") or -1)

    def send(self, count: int, **fields: Any) -> None:
        names = self.testbed.fleet.names
        messages = ({"value": raw.reading(names[n % len(names)].encode(), now_ms()), **fields} for n in range(count))
        raw.send(self.testbed.broker.bootstrap, messages, self.name)

    @contextlib.contextmanager
    def readings(self) -> Iterator[None]:
        """Readings ten times a second, while the block lasts; what the broker refuses is sent again by the client."""
        names = self.testbed.fleet.names
        producer = Producer({"bootstrap.servers": self.testbed.broker.bootstrap, "log_level": 0})

        def send() -> None:
            for number in range(PARTITIONS):
                value = raw.reading(names[number].encode(), now_ms())
                with contextlib.suppress(Exception):  # a topic that is away for the moment
                    producer.produce(self.name, value, partition=number)
            producer.poll(0)

        with Repeated(_EVERY_S, send):
            yield

    def outcome(self, *, ends: bool, within_s: float = FAILS_S) -> tuple[Outcome, list[str]]:
        """Wait until the service ends, or names a failure that it retries; return that and all codes that it has named."""
        if self.command is not None:
            return self.command, [self.command.code]

        def has_ended() -> bool:
            return self.testbed.exit_status is not None or (not ends and bool(self._named()))

        with contextlib.suppress(SetupError):
            self.run.until(has_ended, within_s, "a failure")
        named = self._named()
        status = self.testbed.exit_status
        # A warning is of something that is tried again: of an end only the exit message says why.
        reasons = [(code, text) for by, code, text in named if status is None or by == "tidemark"]
        code, text = reasons[-1] if reasons else ("", f"{self.testbed.last_words()}. {_of_page(status)}")
        return Outcome(status, code, text), [code for _, code, _ in named]

    def _named(self) -> list[tuple[str, str, str]]:
        with self.testbed.log.open("rb") as log:
            log.seek(self._begin)
            said = log.read().decode(errors="replace")
        return [(by, code, _RETRIED.sub("", text)) for by, code, text in _NAMED.findall(said)]

    def _size(self) -> int:
        return self.testbed.log.stat().st_size if self.testbed.log.exists() else 0

    def children(self, word: str) -> list[psutil.Process]:
        """The service's processes with a word on their command line."""
        found = []
        with contextlib.suppress(psutil.Error, SetupError):
            for each in psutil.Process(self.testbed.service_pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if word in " ".join(each.cmdline()):
                        found.append(each)
        return found

    @contextlib.contextmanager
    def killing(self, word: str, every_s: float = 0.02) -> Iterator[None]:
        """Kill such processes whenever there are some, at such times."""

        def kill() -> None:
            for each in self.children(word):
                with contextlib.suppress(psutil.Error):
                    each.kill()

        with Repeated(every_s, kill):
            yield


def _of_page(status: int | None) -> str:
    """What the operator reference says of an exit status that has no message."""
    return " ".join(re.findall(rf"^- {status}: .*(?:\n  .*)*", _PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def played(run: Run, number: int, cause: Cause) -> tuple[Outcome, list[str]]:
    """Bring a cause about, and mend it; return what the service said, and what is wrong with that."""
    stage = Stage(run, number)
    with stage.apart(), stage.readings():
        if cause.runs:
            stage.start()
            stage.wait_running()
        with cause.play(stage):
            stage.start_if_needed()
            outcome, codes = stage.outcome(ends=cause.ends)
        problems = cause.problems(outcome, codes)
        if not cause.ends and cause.passes and not problems:
            problems = _goes_on(stage)
    return outcome, problems


def _goes_on(stage: Stage) -> list[str]:
    """What the service retries must pass when its cause has passed."""
    before = stage.batch()
    try:
        stage.run.wait(lambda: stage.batch() > before, STARTS_S, "a batch after the cause")
    except SetupError as error:
        return [f"it did not go on: {error}"]
    return []

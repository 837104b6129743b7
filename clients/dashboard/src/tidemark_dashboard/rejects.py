"""The newest rejects, decoded: what a command such as `tidemark rejects list` prints.

Rejects are in Kafka, which the dashboard does not read. The command is the operator's own (`--rejects`), so the page can read no
more than the command can. It runs as rarely as makes it no burden, one at a time, and only while a page asks for its answer.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tidemark_dashboard.health import now_ms

SHOWN = 20
SINCE = "10m"
EVERY_S, REST = 30.0, 19.0
"""Between two runs for the same question, and for so many times the length of the last one: a twentieth of a core."""
KEPT_S = 600.0
"""After so long the answer of a run has rejects that are not of the last ten minutes any more."""
PATIENCE_S = 60.0
MOST_BYTES = 1 << 20
MOST_QUESTIONS = 50
"""Devices whose answers are kept, or wait for their turn."""


@dataclass(frozen=True, slots=True)
class Reject:
    """One rejected record; `place` is its topic[partition]@offset, `detail` says what was found and what was expected."""

    place: str
    broker_ms: int
    reason: str
    detail: str
    device: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The newest rejects, the newest first, as of `at_ms`; or why they are not known."""

    rejects: tuple[Reject, ...]
    at_ms: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Run:
    """The last run for a question, until when there is no other one, and how many rejects there were when it began."""

    answer: Answer
    ended_s: float
    until_s: float
    counted: float | None


class Rejects:
    """`command` prints rejects as JSON, one a line, with the options that are added; () for none.

    `on_change` is called with the device of an answer, "" for all devices. `counted` returns how many rejects the service has
    published, None where that is not known: the command does not run again while there are no new ones.
    """

    def __init__(
        self,
        command: Sequence[str],
        on_change: Callable[[str], None],
        counted: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._command, self._on_change, self._counted = tuple(command), on_change, counted
        self._runs: dict[str, _Run] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(1)

    @property
    def is_known(self) -> bool:
        """Whether there is a command."""
        return bool(self._command)

    def newest(self, device: str = "") -> Answer | None:
        """The last answer, None before the first one; an old one is asked for again.

        An answer without rejects is of now as long as the service counts no new ones.
        """
        run = self._runs.get(device)
        is_free = device not in self._tasks and len(self._tasks) < MOST_QUESTIONS
        if self._command and is_free and (run is None or self._is_due(run)):
            self._tasks[device] = asyncio.create_task(self._ask(device))
        if run is None:
            return None
        return replace(run.answer, at_ms=now_ms()) if self._is_of_now(run) and not run.answer.rejects else run.answer

    def _is_due(self, run: _Run) -> bool:
        now_s = time.monotonic()
        is_kept = self._is_of_now(run) and (not run.answer.rejects or now_s <= run.ended_s + KEPT_S)
        return now_s >= run.until_s and not is_kept

    def _is_of_now(self, run: _Run) -> bool:
        return run.counted is not None and run.counted == self._counted() and not run.answer.error

    async def close(self) -> None:
        """End the commands that run."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, device: str) -> None:
        try:
            async with self._turn:
                began_s, counted = time.monotonic(), self._counted()
                answer = await self._run(device)
            ended_s = time.monotonic()
            self._runs.pop(device, None)
            self._runs[device] = _Run(answer, ended_s, ended_s + max(EVERY_S, REST * (ended_s - began_s)), counted)
            while len(self._runs) > MOST_QUESTIONS:
                del self._runs[next(iter(self._runs))]
        finally:
            del self._tasks[device]
        self._on_change(device)

    async def _run(self, device: str) -> Answer:
        words = [*self._command, "--json", "-n", str(SHOWN), "--since", SINCE]
        words += [f"--device={device}"] if device else []
        words = ["nice", "-n", "10", *words] if shutil.which("nice") else words
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except (OSError, ValueError) as error:  # ValueError: NUL in the name of a device
            return Answer((), now_ms(), f"The command of --rejects cannot be run: {error}")
        try:
            async with asyncio.timeout(PATIENCE_S):
                out, err = await asyncio.gather(_read(process.stdout), _read(process.stderr))
                status = await process.wait()
        except TimeoutError:
            return Answer((), now_ms(), f"The command of --rejects has not ended within {PATIENCE_S:.0f} s")
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if status:
            said = err.decode("utf-8", "replace").strip().splitlines() or [""]
            return Answer((), now_ms(), f"The command of --rejects has ended with status {status}: {said[-1][:300]}")
        found = sorted(_parsed(out), key=lambda each: each.broker_ms, reverse=True)
        return Answer(tuple(found[:SHOWN]), now_ms())


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """The first MOST_BYTES; the rest is read and forgotten, so that the command does not wait for its reader."""
    kept = b""
    while stream is not None and (piece := await stream.read(65_536)):
        kept += piece[: MOST_BYTES - len(kept)]
    return kept


def _parsed(out: bytes) -> Iterator[Reject]:
    for line in out.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            each = json.loads(line)
            index = f"#{each['index']}" if "index" in each else ""
            place = f"{each['topic']}[{each['partition']}]@{each['offset']}{index}"
            yield Reject(
                place, int(each["broker_ms"]), str(each["reason"]), str(each["detail"]), str(each["device"] or "")
            )

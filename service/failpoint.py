"""Crash points for tests: named places in a batch, or a command, where the service can be made to die or to fail.

    before_fetch                  a batch may begin, nothing of it is computed
    after_decode                  the batch is planned or computed, nothing of it is written
    half_publish                  a part of its rows is in Redis
    finals_stored                 the finals of the batch are in the outbox
    half_delivered                an outlet has them, and nobody has noted it yet
    outlets_written               every outlet that is not behind has them, progress is not written
    after_publish_before_commit   the progress key is written, Spark has not committed
    after_commit                  the runner saw the commit
    before_views                  the query has ended for other views, nothing of them is written
    after_views                   the views of the next batch are in the checkpoint
    half_filled                   a part of the past of a view is in Redis
    filled_before_noted           all of it is in Redis, and not noted
    half_backfilled               a part of a backfill is in Redis
    backfill_noted                a part of a backfill is noted, and its entries are not where the service looks
    half_corrected                a part of what `tidemark correct` writes is in Redis
    corrected_before_marked       all of it is in Redis, and not marked as corrected
    replayed_before_marked        `tidemark rejects replay` has sent records, and not marked them as replayed
    reshape_staged                the state of another shape lies beside the checkpoint's, nothing else is changed
    reshape_begun                 the switch to it is noted, nothing is replaced
    reshape_half                  some of the checkpoint's files are replaced, and some are not

`TIDEMARK_FAILPOINT=name:nth[:kill|raise][,...]`, honoured only with `TIDEMARK_TEST=1`: the nth hit in a process kills the
driver, its JVM first (SIGKILL, the default), or raises InjectedError. Several points fire in their order; the hits of a point
count from the moment when the point before it fired. `TIDEMARK_FAILPOINT_FIRED` names a file that gets a line before each point
fires: a supervised restart has the same environment, and continues with the first point without a line. On an executor, which
writes a large batch, `half_publish` kills the Python worker alone. Without the variable a hit costs one comparison.
"""

import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from service.errors import QueryError, SettingsError

_BATCH = ("before_fetch", "after_decode", "half_publish", "after_publish_before_commit", "after_commit")
_VIEWS = ("before_views", "after_views", "half_filled", "filled_before_noted")
_OUTLETS = ("finals_stored", "half_delivered", "outlets_written")
_BACKFILL = ("half_backfilled", "backfill_noted")
_COMMANDS = ("half_corrected", "corrected_before_marked", "replayed_before_marked")
_RESHAPE = ("reshape_staged", "reshape_begun", "reshape_half")
NAMES = (*_BATCH, *_OUTLETS, *_VIEWS, *_BACKFILL, *_COMMANDS, *_RESHAPE)
_FORM = re.compile(rf"({'|'.join(NAMES)}):([1-9]\d*)(?::(kill|raise))?")


class InjectedError(QueryError, code="QUERY_INJECTED"):
    """A failure that a test has requested; it is transient."""


@dataclass(frozen=True, slots=True)
class Point:
    """The `nth` hit of `name` is to kill or raise."""

    name: str
    nth: int
    action: str


@dataclass(slots=True)
class Plan:
    """The points in order; `hits` counts those of the first point that has not fired."""

    points: tuple[Point, ...]
    fired: Path | None
    at: int = 0
    hits: int = 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Plan | None":
        """None outside of tests and without a crash point; raises SettingsError when it cannot be read."""
        text = environment.get("TIDEMARK_FAILPOINT", "")
        if environment.get("TIDEMARK_TEST") != "1" or not text:
            return None
        matches = [_FORM.fullmatch(each) for each in text.split(",")]
        points = tuple(Point(each[1], int(each[2]), each[3] or "kill") for each in matches if each is not None)
        if len(points) < len(matches):
            what = f"TIDEMARK_FAILPOINT = {text!r}: it must be name:nth[:kill|raise][,...] with {', '.join(NAMES)}"
            raise SettingsError(what)
        fired = environment.get("TIDEMARK_FAILPOINT_FIRED")
        return cls(points, Path(fired) if fired else None)

    def hit(self, name: str) -> None:
        if self.fired is not None and (lines := _lines(self.fired)) != self.at:
            self.at, self.hits = lines, 0
        if self.at >= len(self.points) or self.points[self.at].name != name:
            return
        point = self.points[self.at]
        self.hits += 1
        if self.hits < point.nth:
            return
        if self.fired is not None:
            with self.fired.open("a", encoding="utf-8") as marks:
                marks.write(f"{point.name}:{point.nth}:{point.action}\n")
        self.at, self.hits = self.at + 1, 0
        if point.action == "raise":
            raise InjectedError(f"{name} was asked for by TIDEMARK_FAILPOINT")
        jvm = _jvm()
        if jvm is not None:
            os.kill(jvm, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


_plan = Plan.of(os.environ)


def hit(name: str) -> None:
    """Crash or raise if the plan has the point `name`, and this is its hit."""
    if _plan is not None:
        _plan.hit(name)


def _jvm() -> int | None:
    """The driver's JVM: our parent under spark-submit, our child otherwise. None in an executor's worker."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return os.getppid()
    children = psutil.Process().children()
    return next((child.pid for child in children if any("SparkSubmit" in word for word in child.cmdline())), None)

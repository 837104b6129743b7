"""Crash points for tests: named places in a batch where the service can be made to die or to fail.

    before_fetch                  a batch has passed the gate, nothing of it is computed
    after_decode                  the batch is planned or computed, nothing of it is written
    half_publish                  a part of its rows is in Redis
    after_publish_before_commit   the progress key is written, Spark has not committed
    after_commit                  the runner saw the commit

`TIDEMARK_FAILPOINT=name:nth[:kill|raise]`, honoured only with `TIDEMARK_TEST=1`: the nth hit in a process kills the
driver, its JVM first (SIGKILL, the default), or raises InjectedError. `TIDEMARK_FAILPOINT_FIRED` names a file that is created
before; while it exists nothing fires, since a supervised restart has the same environment. On an executor, where a large
batch is written, `half_publish` kills the Python worker alone. Anywhere else a hit costs one comparison.
"""

import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkContext

from service.errors import QueryError, SettingsError

NAMES = ("before_fetch", "after_decode", "half_publish", "after_publish_before_commit", "after_commit")
_FORM = re.compile(rf"({'|'.join(NAMES)}):([1-9]\d*)(?::(kill|raise))?")


class InjectedError(QueryError):
    """A failure that a test asked for; it passes."""

    code = "QUERY_INJECTED"


@dataclass(slots=True)
class Plan:
    """What is to happen; `left` counts down to it."""

    name: str
    left: int
    action: str
    fired: Path | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Plan | None":
        """None outside of tests and without a crash point; raises SettingsError when it cannot be read."""
        text = environment.get("TIDEMARK_FAILPOINT", "")
        if environment.get("TIDEMARK_TEST") != "1" or not text:
            return None
        found = _FORM.fullmatch(text)
        if found is None:
            what = f"TIDEMARK_FAILPOINT = {text!r}: it must be name:nth[:kill|raise] with one of {', '.join(NAMES)}"
            raise SettingsError(what)
        fired = environment.get("TIDEMARK_FAILPOINT_FIRED")
        return cls(found[1], int(found[2]), found[3] or "kill", Path(fired) if fired else None)

    def hit(self, name: str) -> None:
        if name != self.name:
            return
        self.left -= 1
        if self.left != 0 or (self.fired is not None and self.fired.exists()):
            return
        if self.fired is not None:
            self.fired.touch()
        if self.action == "raise":
            what = f"{name} was asked for by TIDEMARK_FAILPOINT"
            raise InjectedError(what)
        jvm = _jvm()
        if jvm is not None:
            os.kill(jvm, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


_plan = Plan.of(os.environ)


def hit(name: str) -> None:
    """The service is at the crash point `name`."""
    if _plan is not None:
        _plan.hit(name)


def _jvm() -> int | None:
    """The driver's JVM: our parent under spark-submit, our child otherwise. None in an executor's worker."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return os.getppid()
    process = getattr(SparkContext._gateway, "proc", None)
    return process.pid if process is not None else None

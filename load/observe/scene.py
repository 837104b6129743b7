"""A scene: a service with all of its parts, and the causes of alerts that are brought about on it, group by group.

The causes of a group occur at the same time. Each is a context manager: it brings the cause about when it is entered, and ends
it when it is left. Between the two, each of its alerts must fire and reach Alertmanager's receiver; after it, it must clear.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from load.fleet.fleet import Fleet, FleetSettings
from load.observe.receiver import problem
from load.observe.sender import Sender
from load.observe.watch import Watch
from load.servers.server_process import HOST, PATIENCE, Started, until
from load.testbed import Testbed
from service.errors import SetupError, TidemarkError
from service.monitoring import attention
from service.monitoring.pages import NoServiceError
from service.settings.settings import Metrics

DEVICES = 60
STARTS_S = 180.0
FIRES_S = 400.0
CLEARS_S = 660.0
AGREES_S = 30.0
_POLL_S = 0.3
VIEWS = (
    {"name": "device", "by": ["device"], "window": "10 s", "retain": "1 h"},
    {"name": "site", "by": ["site"], "window": "20 s", "slide": "10 s", "retain": "1 h"},
)


@dataclass(frozen=True, slots=True)
class Cause:
    """Cause of alerts: a description and a context manager. `clears_late`: the next group does not wait for them."""

    alerts: tuple[str, ...]
    text: str
    occurs: Callable[[], AbstractContextManager[None]]
    clears_late: bool = False


@dataclass(slots=True)
class Played:
    """An alert that was played: seconds from the begin of the cause until it fired, from its end until it cleared."""

    alert: str
    job: str
    cause: str
    fired_s: float | None = None
    notified: bool = False
    cleared_s: float | None = None
    problem: str = ""
    is_shown: bool = False
    """The service has shown that the alert fires; True for an alert that only Prometheus can evaluate."""
    is_hidden: bool = False
    """The service has shown that the alert is over."""
    since_s: float = field(default=0.0, repr=False)

    @property
    def agrees(self) -> bool:
        """Whether the service has shown the same as Prometheus."""
        return (self.is_shown or self.fired_s is None) and (self.is_hidden or self.cleared_s is None)

    @property
    def is_well(self) -> bool:
        return (
            self.fired_s is not None
            and self.notified
            and self.cleared_s is not None
            and not self.problem
            and self.agrees
        )


class Scene(Started):
    """A service on a testbed of its own, scraped as the job `job`. Subclasses have settings and causes."""

    job = "tidemark-scene"

    def __init__(self, folder: Path) -> None:
        fleet = Fleet(7, FleetSettings(devices=DEVICES, rate=1.0))
        options: dict[str, Any] = {"views": VIEWS, "sections": self.sections(), "master": "local[2]"}
        self.testbed = Testbed(folder / self.job, fleet, **(options | dict(self.options())))
        self.sender = Sender(self.testbed.broker.bootstrap, [str(name) for name in fleet.names])
        self._parts = contextlib.ExitStack()
        self._metrics = Metrics(address=HOST, port=self.testbed.metrics_port)
        self._is_interrupted = False

    def options(self) -> Mapping[str, Any]:
        """More arguments of the testbed."""
        return {}

    def sections(self) -> Mapping[str, Mapping[str, Any]]:
        """Sections of the settings."""
        return {}

    def groups(self) -> Sequence[Sequence[Cause]]:
        """Return the causes in groups; the causes of a group occur at the same time."""
        raise NotImplementedError

    def parts(self) -> Sequence[AbstractContextManager[object]]:
        """Return the parts that start before the service, in addition to the testbed's."""
        return ()

    def start(self) -> None:
        for part in (*self.parts(), self.testbed, self.sender):
            self._parts.enter_context(part)
        self.testbed.start_service()
        self.testbed.wait_ready(STARTS_S)

    def close(self) -> None:
        self._parts.close()

    def interrupt(self) -> None:
        """End what waits in another thread, which then closes the scene."""
        self._is_interrupted = True
        self.testbed.kill_service()

    @contextlib.contextmanager
    def sending(self, **wrong: Any) -> Iterator[None]:
        """Send records of which these shares are wrong."""
        right, self.sender.wrong = self.sender.wrong, replace(self.sender.wrong, **wrong)
        yield
        self.sender.wrong = right

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {self.job}: {text}", flush=True)

    def restart(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the service again with these variables added, and wait until it is ready."""
        self.testbed.kill_service()
        self.testbed.start_service(environment)
        self.testbed.wait_ready(STARTS_S)

    @property
    def alerts(self) -> set[str]:
        return {alert for group in self.groups() for cause in group for alert in cause.alerts}

    def until(self, condition: Callable[[], Any], within_s: float, what: str) -> None:
        """Wait for a condition, also while the service does not run. Raises SetupError."""

        def answer() -> Any:
            if self._is_interrupted:
                raise KeyboardInterrupt
            return condition()

        until(answer, within_s * PATIENCE, f"{what} in {self.job}", every_s=_POLL_S)

    # Playing.

    def play(self, watch: Watch, only: Collection[str] = ()) -> list[Played]:
        """Play all groups, or the groups with an alert of `only`. Return no rows if the scene has none of them.

        A failure of the testbed is the problem of the alerts that could not be played.
        """
        causes = [[cause for cause in group if not only or set(only) & {*cause.alerts}] for group in self.groups()]
        groups = [group for group in causes if group]
        rows = [
            [
                Played(alert, self.job, cause.text)
                for cause in group
                for alert in cause.alerts
                if not only or alert in only
            ]
            for group in groups
        ]
        if not groups:
            return []
        try:
            with self:
                for group, played in zip(groups, rows, strict=True):
                    self._group(group, played, watch)
                self._clear([row for played in rows for row in played if row.cleared_s is None], watch)
        except TidemarkError as error:
            for row in (row for played in rows for row in played if not row.is_well):
                row.problem = row.problem or f"{error.code}: {error}"
            self.say(f"ended: {error.code}: {error}")
        return [row for played in rows for row in played]

    def _group(self, causes: Sequence[Cause], rows: Sequence[Played], watch: Watch) -> None:
        by_cause = [(cause, [row for row in rows if row.alert in cause.alerts]) for cause in causes]
        with contextlib.suppress(SetupError):  # an alert of an earlier cause that does not clear is that one's problem
            quiet = [row.alert for row in rows]
            self.until(lambda: all(watch.is_quiet(self.job, each) for each in quiet), CLEARS_S, "alerts to clear")
        with contextlib.ExitStack() as occurring:
            for cause, played in by_cause:
                self.say(cause.text)
                for row in played:
                    row.since_s = time.monotonic()
                occurring.enter_context(cause.occurs())
            self._wait(lambda: self._have_fired(rows, watch), FIRES_S)
            for row in rows:
                row.problem = "" if row.fired_s is not None else f"it did not fire within {FIRES_S:.0f} s"
                row.since_s = time.monotonic()
        late = {alert for cause in causes if cause.clears_late for alert in cause.alerts}
        self._clear([row for row in rows if row.alert not in late], watch)

    def _clear(self, rows: Sequence[Played], watch: Watch) -> None:
        """Wait until the alerts that have fired have cleared, and judge their notifications."""
        self._wait(lambda: self._have_cleared(rows, watch), CLEARS_S)
        for row in (row for row in rows if row.fired_s is not None):
            notification = watch.notified(self.job, row.alert, 0.0)
            if row.cleared_s is None:
                row.problem = f"it did not clear within {CLEARS_S:.0f} s"
            elif notification is not None:
                row.problem = problem(notification, watch.rules[row.alert])
                row.notified = not row.problem
            self.say(f"{row.alert}: fired after {row.fired_s} s, cleared after {row.cleared_s} s {row.problem}")

    def _wait(self, states: Callable[[], list[bool]], within_s: float) -> None:
        with contextlib.suppress(SetupError):
            self.until(lambda: all(states()), within_s, "alerts")

    def _have_fired(self, rows: Sequence[Played], watch: Watch) -> list[bool]:
        firing = self._firing()
        for row in rows:
            row.is_shown = row.is_shown or row.alert in firing or watch.rules[row.alert].played.prometheus_only
            notification = watch.notified(self.job, row.alert, row.since_s)
            if row.fired_s is None and notification is not None:
                row.fired_s = round(notification.at_s - row.since_s, 1)
        return [self._agrees(row.is_shown, row.fired_s, row) for row in rows]

    def _have_cleared(self, rows: Sequence[Played], watch: Watch) -> list[bool]:
        firing = self._firing()
        for row in rows:
            row.is_hidden = row.alert not in firing
            if row.fired_s is not None and row.cleared_s is None and watch.is_quiet(self.job, row.alert):
                resolved = watch.receiver.of(self.job, row.alert)[-1]
                row.cleared_s = round(max(0.0, resolved.at_s - row.since_s), 1)
        return [row.fired_s is None or self._agrees(row.is_hidden, row.cleared_s, row) for row in rows]

    def _agrees(self, is_seen: bool, after_s: float | None, row: Played) -> bool:
        """Whether Prometheus has reached a state, and the service, too, or has had AGREES_S more time for it."""
        return after_s is not None and (is_seen or time.monotonic() > row.since_s + after_s + AGREES_S)

    def _firing(self) -> set[str]:
        """Return the alerts that `tidemark status` prints as firing; none while the service does not answer."""
        lines = []
        with contextlib.suppress(NoServiceError):
            lines = list(attention.lines(attention.asked(self._metrics)))
        return {line.split()[2] for line in lines if line.startswith("firing ")}

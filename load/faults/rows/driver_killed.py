"""F1: the driver dies at each crash point, in every order that a seed gives, and then at random times."""

from collections.abc import Callable, Sequence
from pathlib import Path

from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from service.errors import SetupError

POINTS = ("before_fetch", "after_decode", "half_publish", "after_publish_before_commit", "after_commit")
ACTIONS = ("kill", "raise")
CELLS = tuple((name, action) for name in POINTS for action in ACTIONS)
FIRST, NEXT = 8, 3
"""In which batch the first crash happens; and the others, counted from the crash before."""
MEAN_S = 20.0


@row("F1", "the driver is killed at each crash point, then 20 times at random", testbed={"supervised": True})
def driver_killed(run: Run) -> Figures:
    """The matrix, then random kills of the JVM or the Python; short: three of them."""
    crash_points(run)
    kills = run.times(20, short=3)
    for pause in run.nemesis.pauses(kills, MEAN_S):
        run.run_on(pause)
        run.kill_driver(run.nemesis.pick((0, 1)))
    run.recover()
    return {"crash_points": len(CELLS), "random_kills": kills}


def crash_points(
    run: Run,
    first: int = FIRST,
    following: int = NEXT,
    cells: Sequence[tuple[str, str]] = CELLS,
    before: Callable[[], object] = lambda: None,
) -> None:
    """Start the service with these crash points armed, one after the other, under load; returns when the lag is back.

    The first one fires in batch `first`, each other one in batch `following` after the crash before it. The service itself
    dies or fails there; with SIGKILL it is not asked before. `before` is called with the load, and ends before the first one.
    """
    cells = run.nemesis.shuffled(cells)
    armed = [f"{name}:{following if at else first}:{action}" for at, (name, action) in enumerate(cells)]
    fired = run.folder / "fired"
    switches = {"TIDEMARK_TEST": "1", "TIDEMARK_FAILPOINT": ",".join(armed), "TIDEMARK_FAILPOINT_FIRED": str(fired)}
    run.start(switches)
    run.load()
    before()
    for at, (name, action) in enumerate(cells):
        wait_fired(run, fired, at + 1)
        with run.fault(f"{name} {action}", restarts=action == "kill"):
            if action == "kill":
                run.start_again()
    run.recover()


def wait_fired(run: Run, fired: Path, count: int) -> None:
    """Wait until so many crash points have left their line in a file."""

    def are_there() -> bool:
        ended = run.testbed.exit_status
        if fired.exists() and len(fired.read_text().splitlines()) >= count:
            return True
        if ended is not None:
            what = f"The service ended with status {ended} before crash point {count}: {run.testbed.last_words()}"
            raise SetupError(what)
        return False

    run.until(are_there, STARTS_S, f"crash point {count} to fire")

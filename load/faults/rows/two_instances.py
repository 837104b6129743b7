"""F3: two instances at once, on the same checkpoint and on another one; the lease is taken from the one that writes."""

import time

from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from load.instance import Instance

TOGETHER_S = 60.0
ENDS_S = 30.0
_FENCED = 7


@row("F3", "two instances at once")
def two_instances(run: Run) -> Figures:
    """A minute on the same checkpoint, a minute on two; short: 15 s on the same one alone."""
    first, second = run.instance("first"), run.instance("second")
    first.start()
    run.load()
    run.until(lambda: run.observer.progress[1] >= 0, STARTS_S, "the first batch")
    run.steady()
    loses_s = [_together(run, first, second)]
    writer = second
    if not run.short:
        run.end(first)
        other = run.instance("other", "another-checkpoint")
        run.note("rebuild")
        loses_s.append(_together(run, second, other))
        run.end(second)
        writer = other
    else:
        run.end(first)
    run.drain()
    run.end(writer)
    run.compare()
    return {"together_s": TOGETHER_S / 4 if run.short else TOGETHER_S, "loser_ends_s": loses_s}


def _together(run: Run, writer: Instance, other: Instance) -> float:
    """Start a standby, take the lease from the writer, and start the writer again. Return the seconds until it ended."""
    seconds = TOGETHER_S / 4 if run.short else TOGETHER_S
    began = time.monotonic()
    epoch = run.observer.epoch
    other.start()
    run.until(other.is_waiting, STARTS_S, f"{other.name} to wait for the lease")
    run.let_pass(seconds / 3, began)
    if run.observer.epoch != epoch:
        run.violation("P5", f"{other.name} took the epoch from {writer.name}, which was alive")
    with run.fault("lease taken from the writer", restarts=True):
        taken = _cut(run, epoch)
    run.until(lambda: writer.status is not None, ENDS_S, f"{writer.name} to end")
    ended_s = round(time.monotonic() - taken, 1)
    if writer.status != _FENCED or "tidemark: FENCED" not in writer.last_words():
        run.violation("P5", f"{writer.name} ended with status {writer.status}: {writer.last_words()}")
    writer.start()  # as its supervisor would
    run.until(writer.is_waiting, STARTS_S, f"{writer.name} to wait for the lease")
    run.let_pass(seconds, began)
    run.recover(STARTS_S)
    if run.observer.epoch != epoch + 1:
        run.violation("P5", f"a duel: the epoch went from {epoch} to {run.observer.epoch}")
    return ended_s


def _cut(run: Run, epoch: int) -> float:
    """Delete the lease until somebody else has a new epoch: the writer takes a lease that nobody wants again."""
    with run.testbed.redis.client() as client:

        def taken() -> bool:
            client.delete("tidemark:lease")
            return int(str(client.get("tidemark:epoch"))) > epoch

        run.until(taken, ENDS_S, "the other instance to take the lease")
    return time.monotonic()

"""F10: the service is stopped for longer than the topic keeps its records."""

from collections.abc import Mapping

from load.faults.by_hand import Refusal, start_damaged
from load.faults.row import row
from load.faults.run import Figures, Run
from load.judge.oracle import records
from load.judge.rules import read_rules
from load.testbed import TOPIC

BEYOND_S = 10.0
"""So many seconds' load comes after the service has stopped: a part of that is what gets lost."""
SOURCE_STATUS = 5
_LOST = "tidemark_records_lost_total"


@row("F10", "records deleted before they were read", rate=1_000, devices=1_000)
def records_deleted(run: Run) -> Figures:
    """Keep the records that were read in the oracle, because the topic then has neither these nor the lost ones."""
    run.begin()
    run.drain()
    run.stop()
    run.compare()
    read_to = run.observer.ends()
    archive = list(records(read_rules(run.testbed.config), [TOPIC]))
    more = run.load()
    enough = sum(read_to.values()) + BEYOND_S * run.setup.rate
    run.until(lambda: sum(run.observer.ends().values()) >= enough, 120, "records that the service has not read")
    run.unload(more)
    gaps = _delete(run, read_to)
    lost = sum(gaps.values())
    run.note("gap", records=lost)

    refusal = start_damaged(run)
    _judge(run, refusal, read_to, gaps)
    run.testbed.settings["kafka"]["on_data_loss"] = "continue"
    run.testbed.write_settings()
    run.load()
    with run.fault("records deleted", restarts=True):
        run.start()
    run.recover()
    run.steady()
    counted = run.testbed.metrics().get(_LOST, 0.0)
    run.note("lost", records=int(counted))
    run.drain()
    run.stop()
    run.compare(archive=archive, starts={TOPIC: read_to}, lost={TOPIC: gaps})
    return {"gap": lost, "lost_counted": counted, "difference": counted - lost, "refusal": str(refusal)}


def _delete(run: Run, read_to: Mapping[int, int]) -> dict[int, int]:
    """Delete the read records, and a part of the unread ones but in one partition. Return the deleted unread records of each."""
    spared = run.nemesis.pick(sorted(read_to))
    gaps: dict[int, int] = {}
    for partition, end in sorted(run.observer.ends().items()):
        unread = end - read_to[partition]
        gaps[partition] = 0 if partition == spared else max(1, int(unread * run.nemesis.between(0.1, 0.9)))
    run.testbed.broker.delete_records(TOPIC, {partition: read_to[partition] + gaps[partition] for partition in gaps})
    return gaps


def _judge(run: Run, refusal: Refusal | None, read_to: Mapping[int, int], gaps: Mapping[int, int]) -> None:
    if refusal is None or refusal.status != SOURCE_STATUS:
        run.violation("P7", f"{sum(gaps.values())} records are gone, and the service said: {refusal}")
        return
    for partition, count in gaps.items():
        begin = read_to[partition]
        for words in (f"{TOPIC}[{partition}]", str(begin), str(begin + count)) if count else ():
            if words not in refusal.text:
                run.violation("P7", f"the refusal does not say {words!r}: {refusal.text}")

"""F4: the broker goes away, in every way a broker does, and a partition is added."""

from load.faults.by_hand import add_partition, start_again
from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from load.testbed import PARTITIONS, TOPIC

BOUNCES = 5
DOWN_S = 70.0
DOWN_AT_START_S = 10.0
BACK_S = 120.0
"""Within that the service must be consuming again, says the table of faults."""


@row("F4", "the broker goes away", rate=1_000, devices=1_000)
def broker_away(run: Run) -> Figures:
    """Short: SIGKILL, two bounces, down for 10 s."""
    broker = run.testbed.broker
    run.begin()
    if not run.short:
        with run.fault("broker SIGTERM"):
            broker.stop()
            broker.start()
        run.recover(BACK_S)
    with run.fault("broker SIGKILL"):
        broker.kill()
        broker.start()
    run.recover(BACK_S)
    with run.fault("broker bounced"):
        for _ in range(2 if run.short else BOUNCES):
            broker.kill()
            broker.start()
            run.run_on(run.nemesis.between(0.5, 3.0))
    run.recover(BACK_S)
    down_s = 10.0 if run.short else DOWN_S
    with run.fault("broker down"):
        broker.kill()
        run.run_on(down_s)
        broker.start()
    run.recover(BACK_S)
    return {"down_s": down_s, **_down_at_start(run), **_partition_added(run)}


def _down_at_start(run: Run) -> Figures:
    """The service is started while the broker is away; one that ends is started again, as a supervisor would."""
    run.stop()
    with run.fault("broker down at start", restarts=True):
        run.testbed.broker.kill()
        run.start(wait=False)
        # It has asked for the topics by then: nothing answers, and metrics come before that.
        run.until(
            lambda: run.testbed.exit_status is not None or run.testbed.metrics(), STARTS_S, "a sign of the service"
        )
        run.let_pass(DOWN_AT_START_S)
        run.testbed.broker.start()
        starts = start_again(run)
    run.recover(BACK_S)
    return {"starts_again": starts}


def _partition_added(run: Run) -> Figures:
    """The topic grows, and a second generator, which knows of the new partition, sends to it as well."""
    name = str(add_partition(run))
    run.load(run.setup.rate / 2)
    run.wait(
        lambda: run.testbed.progress().get("offsets", {}).get(TOPIC, {}).get(name, 0) > 0, STARTS_S, "the new partition"
    )
    run.steady()
    return {"partitions": PARTITIONS + 1}

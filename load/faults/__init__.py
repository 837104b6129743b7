"""The fault runner: a row of faults is played against the whole service, and one history file says what happened.

    python -m load.faults --id F1 --seed 7 [--quick] [--json FILE]      one row; without --id every row, in turn
    python -m load.faults.checker .build/faults/F1/history.jsonl        the rules again, on a history that is there

The parts: a *generator* (load/fleet/generator.py, a process of its own), an *oracle* (load/judge, at the end), an
*observer* that reads what an application would (observer.py), a seeded *nemesis* (nemesis.py) and a *checker* over the
history (checker.py, rules.py). A row is a function that says in which order things go wrong; it judges nothing itself:

    # load/faults/rows/broker_away.py
    from load.faults.row import row
    from load.faults.run import Figures, Run

    @row("F4", "the broker goes away", rate=2_000, testbed={"supervised": True})
    def broker_away(run: Run) -> Figures:
        run.start()                                         # the service; returns when its query runs
        run.load()                                          # the generator, at the row's rate
        run.steady()                                        # some batches without a fault: P8's trigger is measured here
        for _ in range(1 if run.short else 5):
            with run.fault("broker killed"):                # its begin and end are in the history
                run.testbed.broker.kill()
                run.testbed.broker.start()
            run.recover()                                   # until the lag is back; P8 is judged from the history
        return {"bounces": 1 if run.short else 5}

The runner imports every module in load/faults/rows/. `@row(testbed=...)` are keyword arguments of load.testbed.Testbed;
`run.testbed`, `run.history`, `run.observer` and `run.nemesis` are open to a row. After it returns, the runner ends the
load, waits until all is published, stops the service, compares everything with the oracle (`run.compare()`, which a row
may also call in between) and lets the checker read the history. What a rule must know but cannot see is a note:

    run.note("redis_lost")                   a value may be older than it was, or gone, until the fault around this ends (P2);
                                             with `shard=2`, one of that shard only
    run.note("republish")                    the next term writes values of its state beside the stream (P5)
    run.note("views", names=[...])           from here on a term may compute the past of a view beside the stream (P5)
    run.note("rebuild")                      progress may begin again with the next epoch: it is on a new checkpoint
    run.note("gap", records=120)             records that no reader can have any more (P7), and what the service counted:
    run.note("lost", records=120)
    run.violation("P7", "what went wrong")   what no rule can see

An end of the load before the lag was back would leave P8 undecided, so `run.recover()` comes after every last fault.
"""

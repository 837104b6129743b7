"""What is stored of a bucket's state, and whose state a worker may use: a hit, another worker, a replay, a new base, damage."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.walks.entries import Entries
from state import codec, store
from state.bucket import advance
from state.layout import empty_state
from state.rules import Rules
from state.store import Cache, Store, restore
from tests.runs import fold
from tests.states import contents

RULES = Rules(gap_ms=10, max_duration_ms=160, retain_ms=100, measures=("t",))
FAR = 1 << 41


def runs_of(*readings, rules=RULES):
    device, ms = zip(*readings, strict=True)
    return fold(
        pa.array(device), np.array(ms, np.int64), {name: np.array(ms, np.float64) for name in rules.measures}, rules
    )


class Worker:
    """A worker process with what it keeps; `step` is a batch of one bucket."""

    def __init__(self, entries, limit_bytes=store.CACHE_BYTES, *, cache=None, query=""):
        self.entries, self.cache, self.query = entries, cache or Cache(limit_bytes), query

    def load(self, bucket=0):
        self.entries.key, self.entries.calls = bucket, []
        self.store = Store(self.entries, self.cache, query=self.query)
        return self.store.load(bucket)

    def step(self, *readings, watermark=0, bucket=0, rules=RULES):
        """The state before and after the batch, and `Written`."""
        stored = self.load(bucket)
        before = stored.state if stored else empty_state(rules)
        after, _, _ = advance(before, [], [runs_of(*readings, rules=rules)] if readings else [], watermark, rules)
        return before, after, self.store.save(bucket, stored, after)


def copied(entries):
    other = Entries()
    other.states = {key: dict(values) for key, values in entries.states.items()}
    return other


def everything(entries, bucket=0):
    """What the data source of states would give."""
    values = entries.states[bucket]
    return contents(restore([values[key] for key in sorted(values)]))


def many(number, ms=100):
    return [(f"device-{n:06}", ms) for n in range(number)]


def test_a_worker_that_has_the_state_reads_the_head_alone_and_writes_what_changed():
    entries = Entries()
    worker = Worker(entries)
    _, _, first = worker.step(*many(500))
    assert entries.calls == ["get", "put", "put"]
    before, after, second = worker.step(("device-000007", 105))
    assert entries.calls == ["get", "put", "put"]
    assert second.written < first.written / 20
    assert second.stored == sum(map(len, entries.states[0].values()))
    assert second.written == len(entries.states[0][0]) + len(entries.states[0][2])
    assert second.changed == 8 * (10 + 4 + 1)  # the numbers of a run, with its device's row, and of a device
    assert before.runs.num_rows == 500
    assert everything(entries) == contents(after)


def test_another_worker_reads_everything_and_after_that_only_the_deltas_that_it_has_not_seen():
    entries = Entries()
    first, second = Worker(entries), Worker(entries)
    first.step(*many(50))
    for ms in (101, 102, 103):
        first.step(("device-000001", ms))
    assert second.load().state.runs.num_rows == 50
    assert entries.calls == ["get", "iterate"]
    _, after, _ = second.step(("device-000002", 104))
    assert entries.calls == ["get", "put", "put"]
    second.step(("device-000003", 105))
    before, after, _ = first.step(("device-000004", 106))
    assert entries.calls == ["get", "get", "get", "put", "put"]
    assert before.devices["last_seen"].to_pylist()[1:5] == [103, 104, 105, 100]
    assert everything(entries) == contents(after)


def test_a_worker_keeps_the_states_of_two_queries_that_have_the_same_buckets():
    cache = Cache()
    one, other = (Worker(Entries(), cache=cache, query=query) for query in ("one", "other"))
    one.step(*many(50))
    other.step(*many(20))
    for ms in (101, 102):
        for query in (one, other):
            query.step(("device-000001", ms))
            assert query.entries.calls == ["get", "put", "put"], "it reads the head alone"


def test_a_replay_does_not_use_the_state_of_the_attempt_that_failed():
    entries = Entries()
    worker = Worker(entries)
    worker.step(*many(50))
    worker.step(("device-000001", 101))
    committed = copied(entries)
    worker.step(("device-000001", 102), ("lost", 100))
    worker.entries = committed
    before, after, _ = worker.step(("device-000002", 103))
    assert before.devices.num_rows == 50
    assert before.devices["last_seen"].to_pylist()[:3] == [100, 101, 100]
    assert everything(committed) == contents(after)


def test_a_state_that_went_another_way_after_the_same_base_is_not_caught_up_with():
    entries = Entries()
    worker = Worker(entries)
    worker.step(*many(50))
    committed = copied(entries)
    worker.step(("lost", 101))
    other = Worker(committed)
    other.step(("device-000001", 102))
    other.step(("device-000002", 103))
    worker.entries = committed
    before, _, _ = worker.step(("device-000003", 104))
    assert before.devices.num_rows == 50
    assert before.devices["last_seen"].to_pylist()[:3] == [100, 102, 103]


def test_two_checkpoints_with_the_same_buckets_do_not_mix_in_one_worker():
    one, other = Entries(), Entries()
    worker = Worker(one)
    worker.step(*many(20))
    worker.entries = other
    assert worker.load() is None
    worker.step(*many(30))
    worker.entries = one
    assert worker.load().state.devices.num_rows == 20
    # The same content in another checkpoint may be used.
    worker.entries = copied(one)
    assert worker.load().state.devices.num_rows == 20
    assert worker.entries.calls == ["get"]


def test_other_rules_change_nothing_about_a_state_that_is_kept():
    entries = Entries()
    worker = Worker(entries)
    worker.step(*many(20))
    wider = replace(RULES, measures=("t", "h"))
    before, after, written = worker.step(("device-000001", 101), rules=wider)
    assert (
        contents(before) == contents(Worker(copied(entries)).load().state) or "h.at" not in before.devices.column_names
    )
    assert "h.at" in after.devices.column_names
    assert sorted(entries.states[0]) == [0, 1], "a new column is a new base"
    assert written.written == written.stored
    assert everything(entries) == contents(after)


@pytest.mark.parametrize("changed", [1, 20, 100])
def test_a_base_takes_the_place_of_deltas_that_are_as_many_bytes_or_too_many(changed):
    entries = Entries()
    worker = Worker(entries)
    worker.step(*many(100))
    base, deltas = len(entries.states[0][1]), []
    for ms in range(101, 231):
        _, after, _ = worker.step(*many(changed, ms))
        values = entries.states[0]
        deltas.append(len(values) - 2)
        assert deltas[-1] <= store.MAX_DELTAS
        assert sum(len(data) for key, data in values.items() if key > 1) <= base
        base = len(values[1])
        if not deltas[-1]:
            assert everything(entries) == contents(after)
    assert deltas.count(0) >= 130 // store.MAX_DELTAS, "there is never a new base"
    if changed == 1:
        assert max(deltas) == 0.75 * store.MAX_DELTAS


def test_buckets_write_their_bases_in_different_batches(monkeypatch):
    monkeypatch.setattr(store, "MAX_DELTAS", 16)
    entries = Entries()
    worker = Worker(entries)
    for bucket in range(16):
        worker.step(*many(100), bucket=bucket)
    bases = set()
    for batch in range(1, 22):
        for bucket in range(16):
            worker.step(*many(4, 100 + batch), bucket=bucket)
            if len(entries.states[bucket]) == 2:
                bases.add((batch, bucket))
        if len({bucket for _, bucket in bases}) == 16:
            break
    assert {bucket for _, bucket in bases} == set(range(16))
    assert len({batch for batch, _ in bases}) > 4


def test_a_bucket_that_becomes_empty_leaves_nothing():
    entries = Entries()
    worker = Worker(entries)
    worker.step(*many(20))
    worker.step(("device-000001", 101))
    assert worker.step(watermark=FAR)[2] == (0, 0, 0)
    assert entries.states == {}
    assert entries.calls == ["get", "clear"]
    assert worker.step(watermark=FAR)[2] == (0, 0, 0)
    assert entries.calls == ["get"]
    before, _, _ = worker.step(("device-000001", 101))
    assert before.devices.num_rows == 0


def test_a_worker_keeps_the_buckets_that_it_used_last():
    entries = Entries()
    size = store._size(Worker(Entries()).step(*many(100))[1])
    worker = Worker(entries, limit_bytes=int(2.5 * size))
    for bucket in range(3):
        worker.step(*many(100), bucket=bucket)
    calls = {}
    for bucket in (1, 2, 0, 2, 1):
        worker.load(bucket)
        calls.setdefault(bucket, []).append(entries.calls[1:])
    assert calls == {1: [[], ["iterate"]], 2: [[], []], 0: [["iterate"]]}
    tiny = Worker(entries, limit_bytes=1)
    assert tiny.load().state.devices.num_rows == 100


DAMAGE = {
    "a base of another state": lambda values, other: values | {1: other[1]},
    "a delta that is gone": lambda values, _: {key: data for key, data in values.items() if key != 3},
    "deltas in another order": lambda values, _: values | {2: values[3], 3: values[2]},
    "a delta of another state": lambda values, other: values | {3: other[3]},
    "a base that is gone": lambda values, _: {key: data for key, data in values.items() if key != 1},
    "a head that is cut": lambda values, _: values | {0: values[0][:-1]},
    "an older head": lambda values, other: values | {0: other[0]},
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_entries_that_do_not_belong_together_are_refused(damage):
    entries, other = Entries(), Entries()
    for target, ms in ((entries, 100), (other, 101)):
        worker = Worker(target)
        for number in range(3):
            worker.step(("a", ms + 2 * number))
    values = damage(entries.states[0], other.states[0])
    entries.states[0] = values
    with pytest.raises(codec.CodecError):
        Worker(entries).load()
    with pytest.raises(codec.CodecError):
        restore([values[key] for key in sorted(values)])


@given(st.data())
def test_damage_anywhere_is_noticed(data):
    entries = Entries()
    worker = Worker(entries)
    for number, name in enumerate("abc"):
        worker.step((name, 100 + number))
    values = entries.states[0]
    key = data.draw(st.sampled_from(sorted(values)))
    where = data.draw(st.integers(0, len(values[key]) - 1))
    damaged = bytearray(values[key])
    damaged[where] ^= data.draw(st.integers(1, 255))
    values[key] = bytes(damaged)
    with pytest.raises(codec.CodecError):
        Worker(entries).load()


batches = st.lists(
    st.tuples(
        st.integers(0, 2),  # the worker
        st.integers(0, 1),  # the bucket
        st.booleans(),  # an attempt that fails, and is made again
        st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 60)), max_size=4),
        st.integers(0, 40),
    ),
    max_size=30,
)


@given(batches)
def test_whoever_gets_a_bucket_and_whatever_fails_the_state_is_that_of_the_steps_that_count(schedule):
    entries, watermark = Entries(), 0
    workers = [Worker(entries), Worker(entries), Worker(entries, limit_bytes=1)]
    plain = {0: empty_state(RULES), 1: empty_state(RULES)}
    for number, bucket, fails, readings, step in schedule:
        watermark += step
        new = [(device, watermark + ms) for device, ms in readings]
        for attempt in range(fails, -1, -1):
            lost = [("lost", watermark + 9)] * attempt
            committed = copied(entries).states
            before, after, _ = workers[(number + attempt) % 3].step(*new, *lost, watermark=watermark, bucket=bucket)
            assert contents(before) == contents(plain[bucket])
            if attempt:
                entries.states = committed
        runs = [runs_of(*new)] if new else []
        plain[bucket], _, _ = advance(plain[bucket], [], runs, watermark, RULES)
        assert contents(after) == contents(plain[bucket])
        if bucket in entries.states:
            assert everything(entries, bucket) == contents(after)
        else:
            assert after.devices.num_rows == 0

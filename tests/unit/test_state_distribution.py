"""States divided over another number of buckets: nothing is lost or counted twice, and the digest sees each difference."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from state import codec, distribution, windows
from state.bucket import advance
from state.layout import LIMITS, BucketState, empty_state
from state.rules import Rules
from state.window_columns import COLUMNS
from tests.runs import fold
from tests.states import contents

RULES = Rules(gap_ms=10_000, max_duration_ms=64_000, retain_ms=86_400_000, measures=("t",))
WIDER = replace(RULES, measures=("t", "h"))
DEVICES = 60


def parts(view: str, keys: list[str], count: int) -> pa.Table:
    start = np.full(len(keys), 60_000, np.int64)
    columns = {name: start / 7 if name not in {"first", "last"} else start + 3 for name in COLUMNS}
    columns |= {"count": np.full(len(keys), count)}
    return windows.parts(view, "t", pa.array(keys), np.arange(len(keys)), start, start + 60_000, columns)


def state(first: int, last: int, rules: Rules = RULES) -> BucketState:
    """Of the devices with these numbers: a session of two runs and a window each, and a window of a view by site."""
    names = pa.array([f"pump-{n}" for n in range(first, last)])
    made = empty_state(rules)
    for ms in (61_000, 69_000):
        at = np.full(len(names), ms, np.int64)
        runs = fold(names, at, {name: at / (n + 3) for n, name in enumerate(rules.measures)}, rules)
        of_views = [parts("device", names.to_pylist(), 1), parts("site", [f"site-{first}"], len(names))]
        made, _, _ = advance(made, of_views, [runs], 0, rules)
    return made


def divided(states: list[BucketState], buckets: int) -> dict[int, BucketState]:
    """By numbers in texts, as a hash would."""
    found: dict[int, list[BucketState]] = {}
    for each in states:
        of_devices = np.array([int(name[5:]) % buckets for name in each.devices["device"].to_pylist()])
        of_windows = np.array([int(key.partition("-")[2]) % buckets for key in each.windows["key"].to_pylist()])
        for bucket, part in distribution.split(each, of_devices, of_windows).items():
            found.setdefault(bucket, []).append(part)
    return {bucket: distribution.joined(each) for bucket, each in found.items()}


def with_limits(each: BucketState) -> BucketState:
    devices = each.devices
    for name in LIMITS:
        devices = devices.append_column(
            pa.field(name, pa.int64(), nullable=False), pa.array(np.full(len(devices), 5_000))
        )
    return replace(each, devices=devices)


@pytest.mark.parametrize("buckets", [1, 3, 8, 64])
def test_what_is_divided_and_divided_back_is_the_same(buckets: int) -> None:
    # One bucket has a measure and limits that the other lacks.
    before = [state(0, 20), with_limits(state(20, DEVICES, WIDER))]
    whole = distribution.digest(before)
    after = divided(before, buckets)
    assert len(after) == min(buckets, DEVICES)
    assert distribution.digest(list(after.values())) == whole
    assert (whole.devices, whole.runs, whole.windows) == (DEVICES, 2 * DEVICES, DEVICES + 2)
    # A step that follows gives the same, to the order of rows.
    later = fold(pa.array(["pump-1"]), np.array([75_000]), {"t": np.array([1.0])}, RULES)
    there = after[1 % buckets]
    stepped = [advance(each, [], [later], 79_500, WIDER) for each in (before[0], there)]
    closed = [[row for row in changes.sessions.to_pylist() if row["device"] == "pump-1"] for _, changes, _ in stepped]
    assert closed[0] == closed[1]
    assert closed[0][0]["count"] == 3


def test_a_part_is_a_state_that_is_stored_and_read() -> None:
    for part in divided([state(0, 20), state(20, DEVICES, WIDER)], 8).values():
        assert contents(codec.decode(codec.encode(part))) == contents(part)
        device = part.runs["device"].combine_chunks()
        assert device.dictionary.equals(part.devices["device"].combine_chunks())


def test_the_digest_sees_every_column_of_every_table() -> None:
    whole = state(0, 20)
    seen = {distribution.digest([whole]).hash}
    changed = 0
    for name in ("runs", "devices", "windows"):
        table = getattr(whole, name)
        for number, field in enumerate(table.schema):
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
                values = table.column(number).to_numpy().copy()
                values[3] += 1
                other = table.set_column(number, field, pa.array(values))
                seen.add(distribution.digest([replace(whole, **{name: other})]).hash)
                changed += 1
    assert len(seen) == 1 + changed > 20


def test_a_missing_entry_is_another_digest() -> None:
    whole = state(0, 20)
    lacking = replace(whole, windows=windows.compact(whole.windows.slice(1)))
    assert distribution.digest([lacking]) != distribution.digest([whole])
    assert distribution.digest([]).devices == 0

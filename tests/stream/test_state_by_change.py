"""State by change on real Spark: what a worker keeps, what it reads again, and a new base end with the same values."""

import random as randoms
from collections import defaultdict

import pytest

from state import reader
from tests.stream.records import make_settings, reading
from tests.stream.script import Add, Check, Expect, Restart, finished, run
from tests.stream.test_checkpoint import CHANGELOG
from tests.stream.test_pass import AddAndCrash

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_values_after_restarts_and_failed_attempts_are_those_of_a_recomputation(spark, tmp_path):
    rng = randoms.Random(16)
    sent, written = defaultdict(list), []

    def some(devices, size):
        """Readings that are never late, of one minute, whose sums are exact."""
        records = []
        for _ in range(size):
            device, second, value = f"d{rng.randrange(devices)}", rng.randrange(20_000) / 1000, rng.randrange(400) / 4
            sent[device].append(value)
            records.append(reading(device, second, value))
        return records

    def sizes(world):
        written.append({bucket: size[3:] for bucket, size in world.sizes.items()})
        world.sizes.clear()

    def values(world):
        right = {device: (len(values), sum(values)) for device, values in sent.items()}
        rows = {key: finished(row) for (_, _, key, _), row in world.windows.items()}
        shown = {key: (row["count"], row["sum"]) for key, row in rows.items()}
        assert shown == right
        _, devices, windows = reader.read(world.spark, world.settings.service.checkpoint)
        assert dict(zip(windows["key"].to_pylist(), windows["count"].to_pylist(), strict=True)) == {
            device: count for device, (count, _) in right.items()
        }
        assert sorted(devices["device"].to_pylist()) == sorted(sent)

    script = [Add(*some(6, 12)), Check(sizes)]
    for batch in range(6):
        script += [Add(*some(6, 8)), Check(sizes)]
        if batch % 3 == 1:
            script += [AddAndCrash(*some(6, 8)), Restart(), Check(sizes)]
    # So many new devices are more bytes than the base: it is written anew.
    script += [Add(*some(2_000, 3_000)), Check(sizes), Add(*some(2_000, 20)), Check(sizes), Restart(), Add(*some(6, 9))]
    run(spark, make_settings(tmp_path), tmp_path, [*script, Check(sizes), Check(values)])
    # (stored, written, changed) by bucket: the first is a base; then there are deltas, smaller by far.
    first, second = written[0], written[1]
    assert all(stored == size for stored, size, _ in first.values())
    assert all(size < stored / 5 for bucket, (stored, size, _) in second.items() if bucket in first)
    grown, after = written[-3], written[-2]
    assert all(stored == size for stored, size, _ in grown.values())
    assert all(size < stored / 5 for stored, size, _ in after.values())


@pytest.mark.thorough
def test_a_repeated_batch_goes_on_from_its_own_state_alone(spark, tmp_path):
    """The attempt that failed has left a snapshot, with other contents than the one that was committed."""

    def snapshots(only):
        return Check(lambda _: spark.conf.set(CHANGELOG, str(not only).lower()))

    short, long = (make_settings(tmp_path, sessions={"gap": gap}) for gap in ("5 s", "1 m"))
    first = Add(reading("a", 0, 20.0), reading("b", 0, 20.0))
    attempt = AddAndCrash(reading("a", 10, 21.0), reading("b", 10, 21.0))
    script = [first, snapshots(True), Restart(), attempt, snapshots(False), Restart(long), Add(reading("a", 12, 22.0))]
    end = Expect(sessions={("a", 0): "open", ("b", 0): "open"})
    try:
        world = run(spark, short, tmp_path, [*script, end, Restart(), Add(reading("b", 20, 22.0)), end])
    finally:
        spark.conf.set(CHANGELOG, "true")
    assert [world.sessions[device, 0]["count"] for device in ("a", "b")] == [3, 3]

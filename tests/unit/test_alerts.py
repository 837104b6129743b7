"""The alert rules, each in the state that it is for: promtool judges what /metrics says minute by minute (tests/alerts.py).

The service evaluates the same rules over the same samples.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from service import clock
from service.admission.readings import REASONS
from service.micro_batch import MicroBatch
from service.monitoring.alert_rules import RULES as TABLE
from service.monitoring.conditions import Conditions
from service.monitoring.metrics import Metrics
from service.outlets.delivery import Progress
from service.pipeline.batch import BatchReport
from service.pipeline.outcome import LATENCY_BOUNDS_MS, Outcome
from tests.alerts import RULES, assert_selects, check
from tests.stream.records import make_settings

RECORDS = 6_000
DAY_S = 86_400
WARM = 12
QUICK = (RECORDS, *[0] * len(LATENCY_BOUNDS_MS))
OUTLET = {"name": "files", "kind": "parquet", "path": "x", "max_pending": "1 MiB"}
REFERENCE = {"url": "jdbc:sqlite:x", "query": "q"}


def rejected(reason: str, records: int) -> dict[str, Any]:
    return {"rejected": tuple(records * (name == reason) for name in REASONS)}


@dataclass
class Instance:
    """A service's metrics, and a minute of its life as the runner tells of it."""

    metrics: Metrics
    texts: list[str | None] = field(default_factory=list)
    firing: list[set[str]] = field(default_factory=list)
    """The alerts that fire, minute by minute."""
    batch: int = 0
    behind: int = 0

    def works(self, **differently: Any) -> None:
        self.batch += 1
        outcome = Outcome(latency=QUICK, admitted=RECORDS, **differently.pop("outcome", {}))
        micro_batch = MicroBatch(
            differently.pop("epoch", 1),
            self.batch,
            differently.pop("watermark_ms", clock.now_ms()),
            {"r": {0: 0}},
            {"r": {0: RECORDS}},
        )
        report = BatchReport(micro_batch, outcome)
        self.metrics.batch_begins()
        self.metrics.batch_ends(changed(report, **differently))
        self.asks()

    def asks(self) -> None:
        self.metrics.lags({"r": {0: self.behind}})
        self.metrics.asked(clock.now_ms())

    def leads(self) -> None:
        self.metrics.ready("lease")
        self.metrics.query_running.set(1)
        self.metrics.keeps({"r": 7 * DAY_S * 1000})
        self.metrics.headrooms({"r": {0: 6.5 * DAY_S}})

    def fails(self, code: str) -> None:
        self.metrics.batch_fails()
        self.metrics.query_running.set(0)
        self.metrics.waiting("query", code)
        self.metrics.restarts.labels(code).inc()


Step = Callable[[Instance], object]


Play = Callable[..., Instance]


def player(patch: pytest.MonkeyPatch, folder: Path) -> Play:
    """An instance's life: a while of work, then `minutes` of something else, scraped and evaluated once a minute."""

    def scrapes(
        step: Step | None, minutes: int, *, start: Step = Instance.leads, work: Step = Instance.works
    ) -> Instance:
        now_s = 1_700_000_000.0
        patch.setattr(clock, "monotonic_s", lambda: now_s)
        patch.setattr(clock, "now_ms", lambda: int(now_s * 1000))
        instance = Instance(Metrics())
        instance.metrics.limits(make_settings(folder, reference=REFERENCE, outlets=[OUTLET]))
        instance.metrics.reference("v", 10, lambda: 300.0)
        start(instance)
        conditions = None
        for minute in range(WARM + minutes):
            now_s += 60
            if minute < WARM:
                work(instance)
            elif step is not None:
                step(instance)
            dead = minute >= WARM and step is None
            instance.texts.append(None if dead else generate_latest(instance.metrics.registry).decode())
            conditions = conditions or Conditions("a", instance.metrics.registry.collect)
            instance.firing.append(
                {each["alert"] for each in conditions.document()["conditions"] if each["state"] == "firing"}
            )
        return instance

    return scrapes


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    return player(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> tuple[Instance, Instance]:
    """One that works and a standby, for as long as the longest state lasts: a shorter life is the beginning of it."""
    longest = max(minutes for _, minutes, _ in STATES.values())
    with pytest.MonkeyPatch.context() as patch:
        lives = player(patch, tmp_path_factory.mktemp("others"))
        return lives(Instance.works, longest), lives(_nothing, longest, start=_waits, work=_nothing)


def redis_is_away(it: Instance) -> None:
    it.behind += RECORDS
    it.asks()
    it.fails("SINK")


def kafka_is_away(it: Instance) -> None:
    it.metrics.fails("lag")
    it.metrics.lags({})
    it.fails("SOURCE")


def once(act: Step) -> Step:
    """In the first minute, beside the work."""
    acted: list[int] = []

    def step(it: Instance) -> None:
        if not acted:
            act(it)
            acted.append(1)
        it.works()

    return step


def epochs(*numbers: int) -> Step:
    """One minute for each number; 0 is a process that waits for the lease."""
    left = iter(numbers)

    def step(it: Instance) -> None:
        it.works()
        it.metrics.epoch.set(next(left))

    return step


def lost_values(it: Instance) -> None:
    it.metrics.republishes(Outcome(), (0, 1))


def is_old(it: Instance) -> None:
    it.metrics.reference("v", 10, lambda: 7 * 3600.0)
    it.metrics.reference_kept.set(1)


def lacks(it: Instance) -> None:
    since_ms = clock.now_ms() - 120_000
    it.metrics.outlets.watch(lambda: {"files": Progress(9, 600_000, since_ms, "away", is_behind=True)})


def is_refused(it: Instance) -> None:
    it.metrics.outlets.watch(lambda: {"files": Progress(0, 0, None, "", is_behind=False, refused=2)})


def waits_for_an_outlet(it: Instance) -> None:
    """Every other scrape finds the query between two attempts."""
    it.fails("OUTLET")
    it.behind += RECORDS
    it.asks()
    lacks(it)
    if it.behind % (2 * RECORDS):
        it.metrics.outlets.watch(dict)


def hangs(it: Instance) -> None:
    if it.metrics._batch_since is None:
        it.metrics.batch_begins()
    it.asks()


def has_other_values(it: Instance) -> None:
    it.metrics.column_limit.labels("line").set(3)
    it.metrics.others.labels("line").inc(2)
    it.works(column_values={"line": 3})


def stands(it: Instance) -> None:
    it.works(watermark_ms=1_700_000_000_000)


SLOW = (*[0] * (len(LATENCY_BOUNDS_MS) - 1), RECORDS, 0)


def is_slow(it: Instance) -> None:
    it.works()
    it.metrics.latency.add(SLOW, 9.0)


STATES: dict[str, tuple[Step | None, int, set[str]]] = {
    "it works": (Instance.works, 20, set()),
    "the process is gone": (None, 12, {"Absent"}),
    "Redis is away": (redis_is_away, 15, {"NotRunning", "NotReady", "Behind", "QueryRestarts"}),
    "Kafka is away": (kafka_is_away, 10, {"NotRunning", "LagUnknown", "QueryRestarts", "Failures"}),
    "a batch hangs": (hangs, 4, {"Stuck"}),
    "drivers come and go": (lambda it: it.works(epoch=it.batch), 6, {"DriverRestarts"}),
    "two drivers wait for the lease": (epochs(1, 0, 0, 2, 0, 0, 3), 7, set()),
    "records cannot be read": (once(lambda it: it.metrics.unreadable.set(4)), 3, {"Unreadable"}),
    "retention comes near": (once(lambda it: it.metrics.headrooms({"r": {0: DAY_S}})), 3, {"Retention"}),
    "records are lost": (once(lambda it: it.metrics.lost.inc(3)), 3, {"RecordsLost"}),
    "Redis has lost data": (once(lambda it: it.metrics.data_lost.inc()), 3, {"RedisLostData"}),
    "Redis may evict keys": (
        lambda it: (it.works(), it.metrics.stores.redis_evicts.labels("0").set(1)),
        3,
        {"RedisEvicts"},
    ),
    "values are lost": (once(lost_values), 3, {"ValuesLost"}),
    "values were lost long ago": (once(lost_values), 63, set()),
    "readings are behind the watermark": (
        once(lambda it: it.works(outcome=rejected("behind", 1))),
        3,
        {"ReadingsBehind"},
    ),
    "the watermark is held": (lambda it: it.works(held_ms=1_000_000), 8, {"WatermarkHeld"}),
    "partitions are apart": (
        lambda it: it.works(times={("r", 0): (0, 1_000), ("r", 1): (40_000, 41_000)}),
        8,
        {"PartitionsApart"},
    ),
    "rejects": (lambda it: it.works(outcome=rejected("late", RECORDS // 10)), 18, {"Rejects"}),
    "ids are invented": (lambda it: it.works(outcome={"new_devices": RECORDS // 3}), 14, {"InventedDevices"}),
    "there are too many devices": (
        once(lambda it: it.works(outcome=rejected("too_many_devices", 3))),
        3,
        {"TooManyDevices"},
    ),
    "a column has too many values": (has_other_values, 3, {"TooManyValues"}),
    "no reading has a measure": (
        lambda it: it.works(outcome={"measured": ((0, 0, 0, RECORDS),)}),
        19,
        {"MeasureAbsent"},
    ),
    "few readings have a measure": (lambda it: it.works(outcome={"measured": ((0, 0, 1, RECORDS - 1),)}), 19, set()),
    "a limit is near": (
        lambda it: (it.works(), it.metrics.process.limit_used.labels("open_files").set(0.75)),
        8,
        {"LimitNear"},
    ),
    "a clock is ahead": (lambda it: it.works(skewed=1), 12, {"SkewedDevices"}),
    "an id cannot be looked up": (once(lambda it: it.metrics.lookups.labels("full").inc()), 3, {"Schemas"}),
    "event time stands": (stands, 14, {"WatermarkStands", "FinalsOld"}),
    "windows do not close": (lambda it: it.works(watermark_ms=clock.now_ms() - 600_000), 8, {"FinalsOld"}),
    "Redis is ahead": (lambda it: it.works(redis_ahead_ms=60_000), 13, {"RedisAhead"}),
    "readings are not as expected": (
        lambda it: (it.works(), it.metrics.quality.checks({"e": False}, 9, 1.0)),
        17,
        {"Quality"},
    ),
    "samples cannot be checked": (lambda it: (it.works(), it.metrics.quality.failures.inc()), 6, {"QualityUnchecked"}),
    "the reference is kept": (lambda it: (it.works(), is_old(it)), 17, {"ReferenceKept", "ReferenceOld"}),
    "an outlet is away": (lambda it: (it.works(), lacks(it)), 9, {"OutletAway", "OutletFull"}),
    "an outlet refuses rows": (lambda it: (it.works(), is_refused(it)), 2, {"OutletRefuses"}),
    "an outlet is waited for": (
        waits_for_an_outlet,
        12,
        {"OutletAway", "OutletFull", "NotRunning", "NotReady", "Behind", "QueryRestarts"},
    ),
    "readings are slow": (is_slow, 17, {"Slow"}),
}


@pytest.mark.parametrize("state", STATES)
def test_what_fires_is_what_the_state_is_and_another_deployment_hides_nothing(
    state: str, play: Play, others: tuple[Instance, Instance], tmp_path: Path
) -> None:
    step, minutes, expected = STATES[state]
    there = play(step, minutes)
    well, standby = others
    instances = {"tidemark-a/1": there, "tidemark-b/1": well} | ({"tidemark-a/2": standby} if step is not None else {})
    texts = {name: each.texts[: WARM + minutes] for name, each in instances.items()}
    check(texts, sorted(f"tidemark-a Tidemark{name}" for name in expected), tmp_path)
    if step is not None:
        assert there.firing[-1] == {f"Tidemark{name}" for name in expected} - ELSEWHERE


def test_nothing_fires_in_one_that_works_and_in_a_standby(others: tuple[Instance, Instance]) -> None:
    assert [set().union(*each.firing) for each in others] == [set(), set()]


ELSEWHERE = {each.alert for each in TABLE if each.prometheus_only}


@pytest.mark.parametrize("hours", [1, 7])
def test_a_service_that_never_came_up_and_one_that_is_gone_for_hours_are_absent(
    hours: int, play: Play, tmp_path: Path
) -> None:
    minutes = WARM + 60 * hours
    gone = [*play(Instance.works, 1).texts, *[None] * minutes][:minutes]
    never: list[str | None] = [None] * minutes
    (tmp_path / "none").mkdir()
    check(
        {"tidemark-gone/1": gone, "plant/tidemark/1": never},
        ["plant/tidemark TidemarkAbsent", "tidemark-gone TidemarkAbsent"],
        tmp_path,
    )
    check({"redis/1": never}, ["tidemark TidemarkAbsent"], tmp_path / "none")


def _waits(it: Instance) -> None:
    it.metrics.waiting("lease", "a/1 holds the lease", standby=True)


def _nothing(_it: Instance) -> None:
    """Waits for the lease."""


@pytest.mark.parametrize(("trigger", "trigger_s"), [("0 s", 0), ("10 m", 600)])
def test_nothing_is_old_or_slow_while_the_next_batch_is_not_due(tmp_path: Path, trigger: str, trigger_s: int) -> None:
    metrics = Metrics()
    metrics.limits(make_settings(tmp_path, service={"trigger": trigger}))
    value = metrics.registry.get_sample_value
    assert value("tidemark_final_window_max_age_seconds", {"view": "device"}) == 165 + trigger_s
    assert value("tidemark_event_to_redis_max_seconds") == 10 + trigger_s


def test_every_rule_has_a_state_in_which_it_fires() -> None:
    assert {f"Tidemark{name}" for _, _, names in STATES.values() for name in names} == set(RULES)


def test_a_process_says_what_it_is() -> None:
    metrics = Metrics()

    def role() -> list[str]:
        lines = generate_latest(metrics.registry).decode().splitlines()
        return [line.split('"')[1] for line in lines if line.startswith("tidemark_role") and line.endswith(" 1.0")]

    assert role() == ["starting"]
    metrics.waiting("lease", "other holds the lease", standby=True)
    assert role() == ["standby"]
    metrics.waiting("lease", "SINK: away")
    assert role() == ["starting"]
    metrics.ready("lease")
    assert role() == ["leader"]
    Instance(metrics).works()
    assert role() == ["ready"]


def test_lags_are_not_shown_while_kafka_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s)
    it = Instance(Metrics())
    value = it.metrics.registry.get_sample_value
    assert math.isnan(value("tidemark_lag_age_seconds") or 0.0)
    it.asks()
    now_s += 50
    assert (value("tidemark_lag_age_seconds"), value("tidemark_lag_records", {"topic": "r", "partition": "0"})) == (
        50,
        0,
    )
    it.metrics.lags({})
    assert value("tidemark_lag_records", {"topic": "r", "partition": "0"}) is None
    assert (value("tidemark_lag_age_seconds"), it.metrics.lag_total) == (50, None)


def test_without_promtool_a_rule_that_selects_nothing_is_still_found(play: Play) -> None:
    text = play(Instance.works, 1).texts[-1]
    assert text is not None
    for name in ("TidemarkSchemas", "TidemarkReadingsBehind", "TidemarkNotReady", "TidemarkLagUnknown"):
        assert_selects(RULES[name]["expr"], [text])
    for wrong in ('tidemark_role{role="chief"} == 1', "tidemark_lag_record", '{__name__=~"tidemark_none_total"}'):
        with pytest.raises(AssertionError, match="selects nothing"):
            assert_selects(wrong, [text])

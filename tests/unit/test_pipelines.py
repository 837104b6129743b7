"""Several pipelines in one process: what two may not share, how one begins again, and what is shown of them."""

import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from service import settings, threads
from service.daemon import pipeline
from service.daemon.pipeline import Pipeline
from service.errors import CheckpointError, SettingsError
from service.monitoring.metrics import STUCK_S, Metrics
from service.monitoring.monitor import Monitor
from service.monitoring.resource_metrics import ProcessMetrics
from service.monitoring.series import Series
from service.outlets import publication
from service.outlets.delivery import Progress
from service.outlets.outlet import Position
from service.settings import load_named, require_apart
from service.settings.kafka import Kafka
from service.settings.outlets import OutletSection
from tests.served import Served

TEXT = """
[service]
checkpoint = "checkpoint-{name}"
[kafka]
bootstrap = "localhost:9092"
topics = ["readings-{name}"]
group = "{name}"
[input]
format = "json"
measures = {{temperature = "temperature"}}
[[views]]
name = "device"
by = ["device"]
window = "1 min"
[redis]
url = "redis://localhost:6379"
prefix = "{name}"
"""
OUTLET = """
[[outlets]]
name = "history"
kind = "{kind}"
{place}
"""


def write(folder: Path, name: str, *changes: tuple[str, str], more: str = "") -> Path:
    text = TEXT.format(name=name) + more
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def together(*paths: Path) -> None:
    require_apart([(path, load_named(path)) for path in paths])


def test_a_pipeline_has_the_name_of_its_file_unless_the_settings_have_one(tmp_path: Path) -> None:
    one = write(tmp_path, "one")
    named = write(tmp_path, "named", ("[service]", '[service]\nname = "minutes"'))
    assert load_named(one).service.name == "one"
    assert load_named(named).service.name == "minutes"
    assert settings.load(one).service.name == "tidemark", "alone as before"
    together(one, named)
    odd = write(tmp_path, "one").rename(tmp_path / "My file.toml")
    with pytest.raises(SettingsError, match=r"service\.name is missing, and 'My file' is no name"):
        load_named(odd)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("[service]", '[service]\nname = "one"'), "service.name: both are 'one'"),
        (('group = "two"', 'group = "one"'), "kafka.group: both are 'one'"),
        (('prefix = "two"', 'prefix = "one"'), "redis.prefix: both are 'one'"),
        (('prefix = "two"', 'prefix = "one:two"'), "redis.prefix: one of 'one' and 'one:two' is inside the other"),
        (("checkpoint-two", "checkpoint-one"), "service.checkpoint: both are "),
        (("checkpoint-two", "checkpoint-one/two"), "is inside the other"),
        (("checkpoint-two", "file://{folder}/checkpoint-one"), "service.checkpoint: both are "),
        (("readings-two", "readings-one"), "kafka.rejects: both copy rejects to 'readings-one.rejects'"),
        (("[service]", '[service]\nlog = "json"'), "service.log: text and json"),
        (("[redis]", '[otel]\nendpoint = "http://localhost:4318/v1/traces"\n[redis]'), "otel: a process sends"),
    ],
)
def test_two_pipelines_that_share_what_only_one_may_have_are_refused(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    change = change[0], change[1].format(folder=tmp_path)
    one, two = write(tmp_path, "one"), write(tmp_path, "two", change)
    for paths, text in (((one, two), problem), ((two, one), problem.partition(":")[0])):
        with pytest.raises(SettingsError) as caught:
            together(*paths)
        assert text in caught.value.what
        assert caught.value.what.startswith("1 problem:")
        assert "one.toml" in caught.value.what
        assert "two.toml" in caught.value.what


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("parquet", 'path = "history"'),
        ("jdbc", 'url = "jdbc:postgresql://localhost/db"\ntable = "windows"'),
        ("kafka", 'topic = "finals"\nformat = "json"'),
    ],
)
def test_two_outlets_that_write_the_same_place_are_refused(tmp_path: Path, kind: str, place: str) -> None:
    more = OUTLET.format(kind=kind, place=place)
    one, two = write(tmp_path, "one", more=more), write(tmp_path, "two", more=more)
    with pytest.raises(SettingsError, match=r"outlets\.history and outlets\.history: both"):
        together(one, two)
    together(one, write(tmp_path, "three"))


def test_an_outlet_inside_another_or_in_a_rejects_topic_is_refused(tmp_path: Path) -> None:
    one = write(tmp_path, "one", more=OUTLET.format(kind="parquet", place='path = "history"'))
    two = write(tmp_path, "two", more=OUTLET.format(kind="parquet", place=f'path = "file://{tmp_path}/history/two/"'))
    with pytest.raises(SettingsError, match=r"outlets\.history and outlets\.history: one of .* is inside the other"):
        together(one, two)
    rejects = 'topic = "readings-one.rejects"\nformat = "json"'
    three = write(tmp_path, "three", more=OUTLET.format(kind="kafka", place=rejects))
    for paths in ((one, three), (three, one)):
        with pytest.raises(
            SettingsError, match=r"three writes finals to 'readings-one\.rejects', a rejects topic of one"
        ):
            together(*paths)


def test_topics_that_a_pattern_matches_are_kept_apart(tmp_path: Path) -> None:
    pattern = ('topics = ["readings-one"]', 'topics_pattern = "readings-.*"')
    one, other = write(tmp_path, "one", pattern), write(tmp_path, "two")
    outlet = OUTLET.format(kind="kafka", place='topic = "readings-finals"\nformat = "json"')
    three = write(tmp_path, "three", ('topics = ["readings-three"]', 'topics = ["others"]'), more=outlet)
    four = write(tmp_path, "four", ('topics = ["readings-four"]', pattern[1]))
    for paths, message in (
        ((one, other), "both copy rejects to 'readings-two.rejects'"),
        ((three, one), "three writes finals to 'readings-finals', which one reads by its topics_pattern"),
        ((one, four), "both have 'readings-.*', and copy rejects to the same topics"),
    ):
        with pytest.raises(SettingsError, match=re.escape(message)):
            together(*paths)


class Shelf:
    """The class of a third kind, the example of docs/how-to-add.md."""

    def __init__(self, options: "ShelfOutlet", *_: object) -> None:
        self.board = options.board


class ShelfOutlet(OutletSection):
    kind: Literal["shelf"] = "shelf"
    """A board of a shelf."""
    board: str
    """The board."""
    made_by = f"{__name__}:Shelf"

    def place(self, kafka: Kafka) -> tuple[str, ...]:
        return "board", self.board


def test_outlets_of_a_third_kind_are_made_and_kept_apart(tmp_path: Path) -> None:
    paths = [write(tmp_path, name) for name in ("one", "two", "three")]
    boards = [ShelfOutlet(name="finals", board=board) for board in ("upper", "upper", "lower")]
    one, two, three = [
        (path, load_named(path).model_copy(update={"outlets": (each,)}))
        for path, each in zip(paths, boards, strict=True)
    ]
    with pytest.raises(SettingsError, match=r"outlets\.finals and outlets\.finals: both write upper"):
        require_apart([one, two])
    require_apart([one, three])
    made: Any = publication.outlet(boards[0], one[1], None)  # type: ignore[arg-type]
    assert isinstance(made, Shelf)
    assert made.board == "upper"


class Runs:
    """Stands in for the runs of a pipeline: each waits until a test ends it."""

    def __init__(self) -> None:
        self.begun: list[Runs.Run] = []
        self.changed = threading.Condition()

    class Run:
        def __init__(self, runs: "Runs") -> None:
            self._runs, self._ended, self._error = runs, threading.Event(), None
            self.pipeline = ""

        def run(self) -> None:
            self.pipeline = threads.pipeline()
            with self._runs.changed:
                self._runs.begun.append(self)
                self._runs.changed.notify_all()
            assert self._ended.wait(30)
            if self._error is not None:
                raise self._error

        def fail(self, error: Exception) -> None:
            self._error = error  # type: ignore[assignment]
            self._ended.set()

        def stop(self) -> None:
            self._ended.set()

    def __call__(self, *_: Any) -> "Runs.Run":
        return Runs.Run(self)

    def wait(self, count: int) -> "Runs.Run":
        """The run of this number, once it has begun."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= count, 30), f"{len(self.begun)} runs, not {count}"
            assert len(self.begun) == count
            return self.begun[-1]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(pipeline, "Runner", made)
    return made


@pytest.fixture
def running(tmp_path: Path, runs: Runs) -> Iterator[Pipeline]:
    application: Any = None
    loaded = load_named(write(tmp_path, "one"))
    started = Pipeline(loaded, None, application, Monitor.of(loaded))
    started.start()
    yield started
    started.end()
    started.join(30)


def until(condition: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(3_000):
        if condition():
            return
        deadline.wait(0.01)
    raise AssertionError


def test_a_pipeline_that_fails_begins_again_after_a_pause_that_grows(
    running: Pipeline, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(pipeline, "FIRST_PAUSE_S", 0.01)
    running._pause_s = 0.01
    monkeypatch.setattr(
        pipeline._log, "error", lambda _text, _code, _error, pause_s=0.0: pauses.append(pause_s), raising=True
    )
    for number in (1, 2, 3):
        run = runs.wait(number)
        assert run.pipeline == "one", "its log has its name"
        run.fail(CheckpointError("damaged"))
    runs.wait(4)
    assert pauses == [0.01, 0.02, 0.04]
    assert running.monitor.status.has_failed, "until its query runs"
    running.monitor.status.query_started()
    assert not running.monitor.status.has_failed


def test_an_operator_stops_a_pipeline_starts_it_and_ends_its_pause(running: Pipeline, runs: Runs) -> None:
    status = running.monitor.status
    runs.wait(1)
    running.request(False)
    until(lambda: status.state == "stopped")
    assert running.error is None
    assert running.monitor.metrics.unready() == "an operator has stopped it"
    running.request(False)
    running.request(True)
    runs.wait(2).fail(CheckpointError("damaged"))
    until(lambda: status.state == "failed")
    assert "CHECKPOINT: damaged" in running.monitor.metrics.unready()
    assert isinstance(running.error, CheckpointError)
    running.request(False)
    until(lambda: status.state == "stopped")
    assert running.error is None
    assert not status.has_failed
    running.request(True)
    runs.wait(3)
    running.request(False)
    until(lambda: status.state == "stopped")
    running.end()
    running.join(30)
    assert len(runs.begun) == 3


def test_after_a_command_no_former_state_shows(running: Pipeline, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    status, ended = running.monitor.status, list[object]()
    runs.wait(1)
    running.request(False)
    until(lambda: status.state == "stopped")
    with running._changed:  # its thread waits
        running.request(True)
        assert status.state == "waiting"
        running.request(False)
        assert status.state == "stopped"
        running.request(True)
    runs.wait(2).fail(CheckpointError("damaged"))
    until(lambda: status.state == "failed")
    with running._changed:
        running.request(True)
        assert status.state == "waiting"
    runs.wait(3)
    monkeypatch.setattr(status, "ended", ended.append)
    with running._changed:
        running.request(False)
        running.request(True)
    runs.wait(4)
    assert not ended, "it has not been shown as stopped in between"


def test_the_end_takes_no_lock_of_metrics(running: Pipeline, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.wait(1).fail(CheckpointError("damaged"))
    until(lambda: running.monitor.status.state == "failed")
    shown = list[object]()
    monkeypatch.setattr(running.monitor.status, "ended", shown.append)
    running.end()
    running.join(30)
    assert not running._thread.is_alive()
    assert not shown


def test_an_error_without_a_name_and_one_during_a_stop_end_a_run_only(running: Pipeline, runs: Runs) -> None:
    runs.wait(1).fail(ValueError("odd"))
    until(lambda: running.monitor.status.state == "failed")
    assert running.error is not None
    assert running.error.code == "QUERY"
    running.request(True)
    run = runs.wait(2)
    run._error = CheckpointError("while it stops")  # type: ignore[assignment]
    running.request(False)
    until(lambda: running.monitor.status.state == "stopped")
    assert running.error is None


class Shown(Served):
    """What a server answers about two pipelines."""

    def series(self, path: str = "/metrics") -> dict[str, list[dict[str, str]]]:
        found: dict[str, list[dict[str, str]]] = {}
        for family in text_string_to_metric_families(self.get(path)[1]):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(dict(sample.labels))
        return found


@pytest.fixture
def shown() -> Iterator[Shown]:
    made = Shown("one", "two")
    yield made
    made.server.close()


def test_metrics_have_the_label_of_their_pipeline_and_none_of_one_that_is_stopped(shown: Shown) -> None:
    series = shown.series()
    assert [each["pipeline"] for each in series["tidemark_records_total"]] == ["one", "two"]
    text = shown.get("/metrics")[1]
    assert text.count("# TYPE tidemark_records_total counter") == 1
    assert {(each["pipeline"], each["state"]) for each in series["tidemark_pipeline_state"]} >= {("one", "running")}
    assert shown.series("/metrics?pipeline=two")["tidemark_records_total"] == [{}]
    shown.monitors[1].ended(None)
    series = shown.series()
    assert [each["pipeline"] for each in series["tidemark_records_total"]] == ["one"]
    assert [each["pipeline"] for each in series["tidemark_build_info"]] == ["one", "two"]
    alone = shown.series("/metrics?pipeline=two")
    assert "tidemark_build_info" in alone
    assert not {"tidemark_records_total", "tidemark_query_running"} & alone.keys(), "its alerts would fire"


def test_a_pipeline_that_has_ended_shows_nothing_that_kafka_answered_before(shown: Shown) -> None:
    two = shown.monitors[1]
    for end in (lambda: two.ended(CheckpointError("damaged")), two.begins, two.metrics.forget_kafka):
        two.metrics.lags({"r": {0: 5}})
        two.metrics.headrooms({"r": {0: 3_600.0}})
        two.metrics.asked(1)
        end()
        series = shown.series("/metrics?pipeline=two")
        assert not {"tidemark_lag_records", "tidemark_retention_headroom_seconds"} & series.keys()
        assert math.isnan(two.metrics.registry.get_sample_value("tidemark_lag_age_seconds") or 0.0)


def test_a_limit_that_the_process_is_near_is_a_condition_of_each_pipeline_that_is_not_stopped(tmp_path: Path) -> None:
    shared = ProcessMetrics(Series(CollectorRegistry()))
    monitors = [Monitor.of(load_named(write(tmp_path, name)), shared) for name in ("one", "two")]
    shared.limit_used.labels("threads").set(0.8)
    monitors[1].ended(None)
    states = [
        [each["state"] for each in monitor.conditions.document()["conditions"] if each["alert"] == "TidemarkLimitNear"]
        for monitor in monitors
    ]
    assert states == [["pending"], ["inactive"]]


def test_status_is_of_all_or_of_one_and_names_those_there_are(shown: Shown) -> None:
    document = json.loads(shown.get("/status")[1])
    assert {name: each["state"] for name, each in document["pipelines"].items()} == {"one": "waiting", "two": "waiting"}
    assert json.loads(shown.get("/status?pipeline=two")[1])["service"] == "two"
    assert shown.get("/status?pipeline=three") == (404, "There is no such pipeline. There are: one, two\n")
    assert shown.get("/status?pipeline=")[0] == 200
    for path in ("/", "/quality"):
        assert f'<a href="{path}?pipeline=two">two</a>' in shown.get(path)[1]
    assert '<a href="/metrics?pipeline=one">' in shown.get("/?pipeline=one")[1]
    assert shown.get("/quality?pipeline=one")[0] == 404
    assert shown.get("/other")[0] == 404


def test_a_process_is_healthy_while_one_pipeline_is(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = shown.monitors
    for part in ("lease", "batch"):
        one.metrics.ready(part)
    code, body = shown.get("/readyz")
    assert code == 503
    assert json.loads(body)["reason"] == "two: the lease is not held yet; the first batch is not done yet"
    two.ended(None)
    code, body = shown.get("/readyz")
    assert code == 200
    assert json.loads(body)["notes"] == {"two": "an operator has stopped it"}
    two.begins()
    assert shown.get("/readyz")[0] == 503
    two.metrics.batch_begins()
    monkeypatch.setattr(two.metrics, "_running_s", lambda: STUCK_S + 1)
    assert shown.get("/healthz")[0] == 200
    assert shown.get("/healthz?pipeline=two")[0] == 503
    monkeypatch.setattr(one.metrics, "_running_s", lambda: STUCK_S + 1)
    assert shown.get("/healthz")[0] == 503
    one.ended(CheckpointError("damaged"))
    assert shown.get("/healthz")[0] == 503, "the only one that runs is stuck"
    two.ended(None)
    assert shown.get("/healthz")[0] == 200, "none runs"


def test_the_status_names_the_inputs_with_their_topics_and_where_their_rejects_go(tmp_path: Path) -> None:
    document = Monitor.of(settings.load(write(tmp_path, "one"))).document()
    assert document["inputs"] == [
        {"name": "input", "format": "json", "topics": [{"topic": "readings-one", "rejects": "readings-one.rejects"}]}
    ]


def test_the_status_of_an_outlet_has_its_position_and_since_when_it_is_away(tmp_path: Path) -> None:
    outlets = Metrics().outlets
    position = Position(epoch=3, batch=41, watermark_ms=1_000)
    outlets.watch(lambda: {"history": Progress(2, 900, None, "refused", False, 1, "jdbc", position, 5_000)})
    assert outlets.document() == {
        "history": {
            "kind": "jdbc",
            "reached": {"epoch": 3, "batch": 41, "watermark_ms": 1_000},
            "pending_batches": 2,
            "pending_bytes": 900,
            "age_s": 0,
            "is_behind": False,
            "error": "refused",
            "failed_ms": 5_000,
            "refused_rows": 1,
        }
    }

"""Metrics, as a scraper and an orchestrator see them: over HTTP."""

import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from prometheus_client import Gauge
from prometheus_client.parser import text_string_to_metric_families

from service.admission.readings import REASONS
from service.admission.schema_catalog import LOOK_UPS
from service.errors import SetupError
from service.monitoring import metrics
from service.monitoring.metrics import Metrics
from service.pipeline import failure
from service.pipeline.batch import STEPS
from service.pipeline.batch_report import Progress
from service.pipeline.outcome import LATENCY_BOUNDS_MS, Outcome
from tests.reports import REPORT
from tests.served import Served
from tests.stream.records import make_settings
from tests.unit.test_runbook import FAMILIES

PROGRESS = Progress(
    batch=7,
    rows=9,
    durations_ms={"addBatch": 300, "latestOffset": 4, "getBatch": 1, "queryPlanning": 20, "triggerExecution": 340},
    state_bytes=4096,
)

SOURCES = [*Path(metrics.__file__).parents[1].rglob("*.py")]

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Scraped(Served):
    def value(self, name: str, **labels: str) -> float | None:
        samples: Samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
        }
        return samples.get((f"tidemark_{name}", tuple(sorted(labels.items()))))


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    made = Scraped()
    yield made
    made.server.close()


def test_a_batch_is_counted_once(scraped: Scraped) -> None:
    scraped.metrics.batch_begins()
    scraped.metrics.batch_ends(REPORT)
    scraped.metrics.engine(PROGRESS)
    assert scraped.value("records_total") == 9
    assert scraped.value("readings_admitted_total") == 7
    assert scraped.value("rejects_total", reason="late") == 2
    assert scraped.value("rejects_total", reason="early") == 0
    assert scraped.value("published_total", kind="windows") == 5
    assert scraped.value("redis_writes_total", outcome="refused_old") == 1
    assert scraped.value("watermark_timestamp_seconds") == 1_700_000_000.5
    assert (scraped.value("epoch"), scraped.value("batch")) == (3, 7)
    rows = {kind: scraped.value("state_rows", kind=kind) for kind in ("windows", "devices", "sessions")}
    assert rows == {"windows": 16, "devices": 5, "sessions": 1}
    assert (scraped.value("state_bytes"), scraped.value("state_memory_bytes")) == (800, 4096)
    assert (scraped.value("state_written_bytes_total"), scraped.value("state_changed_bytes_total")) == (350, 60)
    for phase, seconds in {"run": 0.25, "publish": 0.01, "source": 0.005, "planning": 0.02, "total": 0.34}.items():
        assert scraped.value("batch_seconds_count", phase=phase) == 1
        assert scraped.value("batch_seconds_sum", phase=phase) == pytest.approx(seconds)
    assert scraped.value("build_info", version=version("tidemark-service"), spark=version("pyspark")) == 1


def test_input_is_silent_until_a_batch_has_records(scraped: Scraped) -> None:
    for closed in (2, 1):
        scraped.metrics.idle(Outcome(sessions=5, closed=closed))
    assert (scraped.value("sessions_closed_idle_total"), scraped.value("input_silent")) == (3, 1)
    scraped.metrics.batch_ends(REPORT)
    assert (scraped.value("sessions_closed_idle_total"), scraped.value("input_silent")) == (3, 0)


def test_latencies_are_weighed_by_readings_and_their_buckets_are_cumulative(scraped: Scraped) -> None:
    scraped.metrics.batch_ends(REPORT)
    scraped.metrics.batch_ends(REPORT)

    bounds = [*(repr(bound_ms / 1000) for bound_ms in LATENCY_BOUNDS_MS), "+Inf"]
    below = [scraped.value("event_to_redis_seconds_bucket", le=bound) for bound in bounds]
    assert below == [0, 4, *[6] * (len(bounds) - 4), 14, 16]
    assert scraped.value("event_to_redis_seconds_count") == 16
    assert scraped.value("event_to_redis_seconds_sum") == pytest.approx(180.14)


def test_every_series_of_a_counter_and_of_a_histogram_exists_before_its_first_event(tmp_path: Path) -> None:
    """Prometheus sees no increase in a series that begins with its first increment."""
    settings = make_settings(
        tmp_path,
        input={"format": "avro", "columns": {"line": {"path": "device_id"}}},
        views=[{"name": "line", "by": ["line"], "window": "1 m"}],
        outlets=[{"name": "files", "kind": "parquet", "path": "x"}],
    )
    made = Metrics()
    made.limits(settings)

    def series() -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        families = [each for each in made.registry.collect() if each.type in {"counter", "histogram"}]
        return {(each.name, tuple(each.labels.items())) for family in families for each in family.samples}

    before = series()
    outcome = replace(REPORT.outcome, rejected=(1,) * len(REASONS), topics=((0, 1),), others=((0, 1),))
    phases = [phase for _, phase in STEPS]
    assert len({*phases}) == 4
    made.batch_ends(replace(REPORT, outcome=outcome, phases=dict.fromkeys(phases, 0.1)))
    made.engine(PROGRESS)
    made.republishes(outcome, (1, 1))
    made.outlet_writes("files", 1, 1)
    made.outlet_fails("files")
    for error in FAMILIES:
        if failure.transient(error("what")):
            made.restarts.labels(error.code).inc()
    for result in LOOK_UPS:
        made.lookups.labels(result).inc()
    for part in re.findall(r'\bfails\("(\w+)"\)', "".join(each.read_text() for each in SOURCES)):
        made.fails(part)
    assert series() == before


def test_a_scrape_misses_no_lag_while_they_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Metrics()
    made.lags({"r": {0: 5, 1: 6}})
    shown = []
    set_ = Gauge.set

    def watched(gauge: Gauge, value: float) -> None:
        shown.append(len(next(iter(made.lag.collect())).samples))
        set_(gauge, value)

    monkeypatch.setattr(Gauge, "set", watched)
    made.lags({"r": {0: 4, 1: 5}})
    assert shown == [2, 2]


def test_a_partition_that_is_gone_leaves_the_lags(scraped: Scraped) -> None:
    scraped.metrics.lags({"r": {0: 5, 1: 6}})
    scraped.metrics.lags({"r": {0: 4}})
    assert scraped.value("lag_records", topic="r", partition="0") == 4
    assert scraped.value("lag_records", topic="r", partition="1") is None


def test_a_note_says_what_is_amiss_with_a_part_that_serves(scraped: Scraped) -> None:
    scraped.metrics.ready("lease")
    scraped.metrics.ready("batch")
    scraped.metrics.note("reference", "the last good snapshot serves on")
    noted = {"ready": True, "notes": {"reference": "the last good snapshot serves on"}}
    assert (scraped.get("/readyz")[0], json.loads(scraped.get("/readyz")[1])) == (200, noted)
    scraped.metrics.note("reference", "")
    assert json.loads(scraped.get("/readyz")[1]) == {"ready": True}


def test_one_reference_is_in_use(scraped: Scraped) -> None:
    scraped.metrics.reference("a1", 7, lambda: 5.0)
    scraped.metrics.reference("b2", 8, lambda: 2.5)
    assert scraped.value("reference_rows") == 8
    assert scraped.value("reference_info", version="b2") == 1
    assert scraped.value("reference_info", version="a1") is None
    assert scraped.value("reference_age_seconds") == 2.5


def test_ready_means_that_the_lease_is_held_and_a_batch_is_done(scraped: Scraped) -> None:
    status, body = scraped.get("/readyz")
    assert status == 503
    assert "lease" in json.loads(body)["reason"]
    assert scraped.metrics.waiting("lease", "host-2 holds the lease")
    assert not scraped.metrics.waiting("lease", "host-2 holds the lease")
    assert "host-2" in json.loads(scraped.get("/readyz")[1])["reason"]
    scraped.metrics.ready("lease")
    assert json.loads(scraped.get("/readyz")[1]) == {"ready": False, "reason": "the first batch is not done yet"}
    scraped.metrics.batch_ends(REPORT)
    assert scraped.get("/readyz") == (200, '{"ready": true}\n')


def test_a_batch_that_does_not_end_is_unhealthy(scraped: Scraped, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scraped.get("/healthz") == (200, '{"healthy": true}\n')
    monkeypatch.setattr(metrics, "STUCK_S", 0.0)
    assert scraped.get("/healthz")[0] == 200, "no batch, none stuck"
    assert scraped.value("batch_running_seconds") == 0
    scraped.metrics.batch_begins()
    assert (scraped.value("batch_running_seconds") or 0) > 0
    status, body = scraped.get("/healthz")
    assert status == 503
    assert "a batch runs for" in json.loads(body)["reason"]
    scraped.metrics.batch_ends(REPORT)
    assert scraped.get("/healthz")[0] == 200


def test_other_paths_are_not_found(scraped: Scraped) -> None:
    assert scraped.get("/other")[0] == 404


def test_a_port_in_use_is_named(scraped: Scraped) -> None:
    with pytest.raises(SetupError, match=rf"metrics\.port = {scraped.port}"):
        Served(port=scraped.port)


def test_a_client_that_hangs_up_leaves_no_traceback(scraped: Scraped, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", scraped.port)) as line:
            line.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close is a reset
    assert scraped.get("/metrics")[0] == 200  # takes longer than the threads before it
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"])
def test_values_stay_in_the_process_where_the_environment_is_made_for_other_programs(tmp_path: Path, name: str) -> None:
    """In files, a pipeline would begin with the values of another one, and a process with those of a former one."""
    program = (
        "from prometheus_client import CollectorRegistry\n"
        "from service.monitoring.series import Series\n"
        "one, other = (Series(CollectorRegistry()).counter('batches', '') for _ in range(2))\n"
        "one.inc()\n"
        "print(*(each.collect()[0].samples[0].value for each in (one, other)))\n"
    )
    environment = {**os.environ, name: str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr, [*tmp_path.iterdir()]) == ("1.0 0.0\n", "", [])

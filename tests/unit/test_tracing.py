"""Traces: spans that are nested, that name no device, that cost nothing while they are off, and that nobody waits for."""

import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service import tracing
from service.errors import SettingsError, SetupError, SinkError
from tests.otlp import Collector
from tests.stream.records import make_settings

DEVICE = "device-4711"


def target(collector: Collector, ratio: float = 1.0) -> tracing.Target:
    return tracing.Target(collector.endpoint, ratio, "tidemark")


def test_spans_are_nested_and_have_the_names_and_numbers_that_they_were_given() -> None:
    with Collector() as collector:
        with tracing.exporting(target(collector)), tracing.span("batch", batch=7, epoch=3):
            with tracing.span("redis values", shard=0):
                pass
            tracing.phases({"cut": 0.1, "run": 0.2})
        [batch] = collector.named("batch")
        assert batch.attributes == {"tidemark.batch": 7, "tidemark.epoch": 3}
        assert [span.name for span in collector.children(batch)] == ["redis values", "cut", "run"]
        [cut], [run] = collector.named("cut"), collector.named("run")
        assert run.begin_ns == cut.end_ns
        assert round((run.end_ns - run.begin_ns) / 1e9, 3) == 0.2
        assert collector.services == {"tidemark"}


def test_an_error_gives_its_code_and_not_its_text() -> None:
    with Collector() as collector:
        error = SinkError(f"Redis refused tidemark:device:{DEVICE}")
        with tracing.exporting(target(collector)), pytest.raises(SinkError), tracing.span("batch"):
            raise error
        [batch] = collector.spans
        assert (batch.status, batch.message, batch.events) == (2, "SINK", 0)
        assert not any(DEVICE.encode() in body for body in collector.bodies)


def _in_another_process(trace: tracing.Trace) -> None:
    with tracing.continued(trace), tracing.span("redis values"):
        pass
    assert tracing._process is not None
    tracing._process.provider.force_flush()


def test_threads_and_other_processes_continue_the_trace() -> None:
    with Collector() as collector:
        with tracing.exporting(target(collector)), tracing.span("batch"):
            trace = tracing.current()
            assert trace is not None
            other = multiprocessing.get_context("spawn").Process(target=_in_another_process, args=(trace,))
            other.start()
            other.join(60)
            assert other.exitcode == 0

            def write(shard: int) -> int:
                with tracing.span("redis progress", shard=shard):
                    return shard

            with ThreadPoolExecutor(2) as pool:
                assert list(pool.map(tracing.bound(write), range(2))) == [0, 1]
        [batch] = collector.named("batch")
        assert sorted(span.name for span in collector.children(batch)) == ["redis progress"] * 2 + ["redis values"]


def test_batches_that_are_not_sampled_are_not_continued() -> None:
    with Collector() as collector:
        with tracing.exporting(target(collector, 1e-9)), tracing.span("batch"):
            assert tracing.current() is None
            with tracing.span("redis values"):
                pass
        assert collector.spans == []


def test_without_a_target_nothing_of_opentelemetrys_traces_is_imported() -> None:
    """redis-py 8.1 imports OpenTelemetry's metrics by itself, where that is installed."""
    program = (
        "import sys; from service import tracing; import service.daemon.process\n"
        "with tracing.exporting(None), tracing.span('batch', batch=1), tracing.continued(tracing.current()):\n"
        "    tracing.phases({'run': 1.0}); tracing.bound(print)\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk.trace', 'opentelemetry.exporter'))])\n"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_span_that_is_off_is_the_same_empty_context() -> None:
    assert tracing.span("batch", batch=1) is tracing.span("redis values")


@pytest.mark.parametrize("collector", [Collector(hangs=True), Collector()], ids=["hangs", "away"])
def test_the_end_of_the_process_does_not_wait_for_a_collector_that_does_not_answer(collector: Collector) -> None:
    if collector.hangs:
        collector.start()
    began = time.monotonic()
    with tracing.exporting(target(collector)):
        with tracing.span("batch"):
            pass
        assert time.monotonic() - began < 5  # the first import is part of it
    assert time.monotonic() - began < 3 * tracing.TIMEOUT_S
    collector.close()


def test_a_check_says_whether_the_collector_takes_traces() -> None:
    with Collector() as collector:
        assert tracing.answers(target(collector))
    assert not tracing.answers(target(collector))


def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with (
        pytest.raises(SetupError, match=r"Install `tidemark-service\[otel\]`"),
        tracing.exporting(tracing.Target("http://127.0.0.1:1/", 1.0, "t")),
    ):
        pass


@pytest.mark.parametrize(
    "otel",
    [
        {"endpoint": "collector:4318"},
        {"endpoint": "http://user:secret@collector:4318/v1/traces"},
        {"endpoint": "http://collector:4318/v1/traces", "sample_ratio": 0},
        {"endpoint": "http://collector:4318/v1/traces", "sample_ratio": 1.5},
    ],
)
def test_an_endpoint_is_a_url_and_a_ratio_is_a_share(otel: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="otel"):
        make_settings(tmp_path, otel=otel)


def test_settings_take_the_url_of_a_collector(tmp_path: Path) -> None:
    made = make_settings(tmp_path, otel={"endpoint": "https://collector.example.com:4318/v1/traces"})
    assert made.otel is not None
    assert made.otel.sample_ratio == 1.0
    assert make_settings(tmp_path).otel is None

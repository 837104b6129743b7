"""Traces of batches by OpenTelemetry: a span for each batch, its phases, its calls of Redis and its copies of rejects.

They are off unless the settings have [otel]. Then this module imports nothing of OpenTelemetry, and `span` returns the same empty
context each time. A span has numbers and the names of steps, never a device, a key, an address or the text of an error.

A process exports in a thread of its own, which drops spans when the collector does not answer: no batch waits for it. A Python
worker of an executor starts its exporter with the first batch that is traced, and continues the batch's trace.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from service.errors import SetupError
from service.settings import Settings

T = TypeVar("T")
TIMEOUT_S = 5
"""How long the collector may take to answer, and how long the end of the process waits for it."""
_OFF: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True)
class Target:
    """Where spans go: the URL of a collector (OTLP over HTTP), the share of batches that are traced, the name of the service."""

    endpoint: str
    ratio: float
    service: str

    @classmethod
    def of(cls, settings: Settings) -> "Target | None":
        otel = settings.otel
        return None if otel is None else cls(otel.endpoint, otel.sample_ratio, settings.service.name)


@dataclass(frozen=True, slots=True)
class Trace:
    """A batch's trace, for processes that continue it: W3C's traceparent, and where the spans go."""

    target: Target
    parent: str


@dataclass(slots=True)
class _Process:
    """The exporter of one process; `pid` tells a forked worker that it has none yet."""

    pid: int
    target: Target
    provider: Any
    tracer: Any


_process: _Process | None = None


@contextmanager
def exporting(target: Target | None) -> Iterator[None]:
    """Export spans to the target inside this context; nothing for None. Raises SetupError when OpenTelemetry is not installed."""
    global _process  # noqa: PLW0603 - one exporter for each process, as OpenTelemetry has
    if target is None:
        yield
        return
    _process = process = _started(target)
    try:
        yield
    finally:
        _process = None
        process.provider.shutdown()


def answers(target: Target) -> bool:
    """Whether the collector takes a request without spans. Raises SetupError when OpenTelemetry is not installed."""
    _require()
    from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415 - installed only where it is used

    exporter = _exporter(target)
    try:
        return bool(exporter.export([]) is SpanExportResult.SUCCESS)
    finally:
        exporter.shutdown()


def span(name: str, **attributes: int | str) -> AbstractContextManager[None]:
    """Return a context that is one span, below the span around it. Each attribute is named `tidemark.<name>`."""
    if _process is None:
        return _OFF
    return _span(_process.tracer, name, attributes)


def phases(seconds: Mapping[str, float]) -> None:
    """Add a span for each phase, one after the other, of which the last one ends now."""
    if _process is None:
        return
    begin_ns = time.time_ns() - int(sum(seconds.values()) * 1e9)
    for name, length_s in seconds.items():
        end_ns = begin_ns + int(length_s * 1e9)
        _process.tracer.start_span(name, start_time=begin_ns).end(end_ns)
        begin_ns = end_ns


def current() -> Trace | None:
    """Return the trace of the span around the caller, None if it is not exported."""
    if _process is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - installed only where it is used
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    if not trace.get_current_span().get_span_context().trace_flags.sampled:
        return None
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return Trace(_process.target, carrier["traceparent"])


def continued(trace: Trace | None) -> AbstractContextManager[None]:
    """Return a context whose spans belong to the trace, in this process or in another one."""
    return _OFF if trace is None else _continued(trace)


def bound(action: Callable[..., T]) -> Callable[..., T]:
    """Return the action with the span around the caller, for a call in another thread."""
    trace = current()
    if trace is None:
        return action

    def call(*arguments: Any) -> T:
        with _continued(trace):
            return action(*arguments)

    return call


@contextmanager
def _span(tracer: Any, name: str, attributes: Mapping[str, int | str]) -> Iterator[None]:
    named = {f"tidemark.{key}": value for key, value in attributes.items()}
    # The text of an error may have a key of Redis, and so a device.
    with tracer.start_as_current_span(
        name, attributes=named, record_exception=False, set_status_on_exception=False
    ) as open_span:
        try:
            yield
        except BaseException as error:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415 - installed only where it is used

            open_span.set_status(StatusCode.ERROR, getattr(error, "code", type(error).__name__))
            raise


@contextmanager
def _continued(trace: Trace) -> Iterator[None]:
    global _process  # noqa: PLW0603 - one exporter for each process, as OpenTelemetry has
    from opentelemetry import context  # noqa: PLC0415 - installed only where it is used
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    if _process is None or _process.pid != os.getpid():
        _process = _started(trace.target)
    token = context.attach(TraceContextTextMapPropagator().extract({"traceparent": trace.parent}))
    try:
        yield
    finally:
        context.detach(token)


def _require() -> None:
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: PLC0415
        import opentelemetry.sdk.trace  # noqa: F401, PLC0415
    except ImportError as error:
        what = f"[otel] needs OpenTelemetry, and {error.name} is not installed"
        raise SetupError(what, remedy="Install `tidemark-service[otel]`, or remove [otel] from the settings") from error


def _exporter(target: Target) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    return OTLPSpanExporter(endpoint=target.endpoint, timeout=TIMEOUT_S)


def _started(target: Target) -> _Process:
    _require()
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415

    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(target.ratio)), resource=Resource.create({"service.name": target.service})
    )
    provider.add_span_processor(BatchSpanProcessor(_exporter(target), schedule_delay_millis=1_000))
    return _Process(os.getpid(), target, provider, provider.get_tracer("tidemark"))

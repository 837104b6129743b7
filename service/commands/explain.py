"""Explain to an operator why a record was rejected: the field, its value, and the type or limit that was expected.

The pass stores a short detail with each reject, because it decides millions of records in Spark (service/admission/readings.py).
This module computes the full text when somebody reads the reject, from its bytes and the present settings. It returns the stored
detail where the bytes are gone, and where they fit the present settings.
"""

import re
from collections.abc import Mapping
from typing import Any

from service.admission import device_ids
from service.admission.formats.format import Dissected
from service.admission.json_record import quoted
from service.commands import dissect
from service.commands.metadata import Metadata
from service.rejects.reject_log import Reject
from service.settings import RECORD_KEY, Input, Settings, field_path, source
from service.units import format_duration, format_time, rough_duration

_AHEAD = re.compile(r"broker time (-?\d+) ms is ahead of the service's clock, (-?\d+) ms")
_SIZE = re.compile(r"(\d+) bytes")
TIME_FORMS = {
    "iso": "an ISO 8601 date and time with seconds, such as 2026-11-20T08:00:00Z",
    "s": "a number of seconds since 1970",
    "ms": "a number of milliseconds since 1970",
    "us": "a number of microseconds since 1970",
    "ns": "a number of nanoseconds since 1970",
    "logical": "a timestamp",
}


def time_form(form: Input) -> str:
    """Return what an event time has to be, and the setting that decides it."""
    if form.event_time_pattern is not None:
        return f"a text such as {form.event_time_pattern} ({form.place}.event_time_pattern)"
    return f"{TIME_FORMS[form.event_time_unit]} ({form.place}.event_time_unit = {form.event_time_unit!r})"


def explain(reject: Reject, dissected: Dissected, settings: Settings) -> str:
    """Return why the record was rejected, in one line. The line may quote the device: print it with `printing.say`."""
    form = settings.form_of(reject.place.topic)
    path = form.event_time
    match reject.reason:
        case "oversized":
            text = _oversized(reject.detail, int(settings.admission.max_bytes))
        case "undecodable":
            text = _undecodable(reject, dissected, form)
        case "unknown_schema" if dissected.schema is not None:
            text = dissected.why if dissected.stop == 1 else f"schema {dissected.schema} is known now"
        case "no_device" if form.device_id == RECORD_KEY:
            text = f"the record has no key, or a blank one; {form.place}.device_id is the record's key"
        case "no_device" if dissected.whole:
            parts = [(path, _missing(reject, dissected, path, form)) for path in form.device_sources]
            text = f"{', '.join(f'{path} {what}' for path, what in parts)}: expected a device id"
        case "bad_device" | "unknown_device" | "too_many_devices":
            text = _device(reject, dissected, form)
        case "no_time" if dissected.whole:
            text = f"{path} {_missing(reject, dissected, path, form)}: expected {time_form(form)}"
        case "not_finite" | "out_of_range":
            text = _measure(reject, dissected, form)
        case "early" | "late" | "behind":
            text = _time(reject, path, settings)
        case "ahead":
            text = _ahead(reject.detail, settings.admission.max_ahead_ms)
        case "replayed":
            text = "it was rejected before and sent again: the copy counts in its place"
        case _:
            text = ""
    return text or reject.detail


def _ahead(detail: str, max_ahead_ms: int) -> str:
    times = _AHEAD.fullmatch(detail)
    if times is None:
        return ""
    broker_ms, now_ms = int(times[1]), int(times[2])
    ahead, limit = rough_duration(broker_ms - now_ms), format_duration(max_ahead_ms)
    text = f"the record's time in Kafka, {format_time(broker_ms)}, is the producer's, and {ahead} ahead of the service's clock"
    return f"{text} {format_time(now_ms)}, limit {limit} (admission.max_ahead)"


def _oversized(detail: str, max_bytes: int) -> str:
    size = _SIZE.match(detail)
    if size is None or "max_array_bytes" in detail:
        return ""
    return f"{_bytes(int(size[1]))}, limit {_bytes(max_bytes)} (admission.max_bytes)"


def _bytes(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}" + ("" if size % unit == 0 else f" ({size} bytes)")
    return f"{size} bytes"


def _undecodable(reject: Reject, dissected: Dissected, form: Input) -> str:
    if reject.value is None:
        return "the record has no value" if reject.omitted_bytes is None else ""
    reason, text = dissect.reason(dissected, Metadata.of(reject), form)
    of = f" of {len(reject.value)})" if dissected.stop is not None else ""
    return (f"{text[:-1]}{of}" if of else text) if reason == "undecodable" else ""


def _missing(reject: Reject, dissected: Dissected, path: str, form: Input) -> str:
    """Return `is missing`, `is null` or `= <value>`."""
    if not source.in_record(path):
        value = Metadata.of(reject).at(path, form)
        return "is missing" if value is None else f"= {quoted(value)}"
    node: Any = dissected.used
    for part in field_path.parts(path):
        if not isinstance(node, Mapping) or part not in node:
            return "is missing"
        node = node[part]
    return "is null" if node is None else f"= {quoted(node)}"


def _device(reject: Reject, dissected: Dissected, form: Input) -> str:
    value = dissect.reading(dissected, Metadata.of(reject), form).device if dissected.whole else None
    if value is None:
        return ""
    text, path = value, form.device_text
    name = "the key" if path == RECORD_KEY else path
    if reject.reason == "unknown_device":
        problem = "not in the reference, and admission.unknown_device is 'reject'"
    elif reject.reason == "too_many_devices":
        problem = reject.detail
    else:
        problem = device_ids.problem(text)
    return f"{name} = {quoted(text)}: {problem}" if problem else ""


def _measure(reject: Reject, dissected: Dissected, form: Input) -> str:
    """The stored detail, with the field's path and its value in the record."""
    name, _, rest = reject.detail.partition(" = ")
    measure = form.measures.get(name)
    metadata = Metadata.of(reject)
    values = (
        [] if measure is None else [(path, dissect.value_at(dissected, path, metadata, form)) for path in measure.paths]
    )
    if measure is None or all(value is None for _, value in values):
        return ""
    measured, _, allowed = rest.partition(", ")
    field = ", ".join(f"{path} = {quoted(value)}" for path, value in values)
    if measure.expression is not None:
        field += f" (measure {name} = {measure.expression} = {measured})"
    elif (measure.scale, measure.offset) != (1, 0):
        field += f" (measure {name} = {measured})"
    elif measure.path != name:
        field += f" (measure {name})"
    return f"{field}: {allowed or 'expected a finite number'}"


def _time(reject: Reject, path: str, settings: Settings) -> str:
    """Times in ISO 8601, their difference in a unit that people read, and the limit of the present settings."""
    event_ms, broker_ms, admission = reject.event_ms, reject.broker_ms, settings.admission
    if event_ms is None:
        return ""
    if reject.watermark_ms is not None:
        behind = rough_duration(reject.watermark_ms - event_ms)
        return f"{path} = {format_time(event_ms)}: {behind} behind the watermark {format_time(reject.watermark_ms)}"
    name, limit_ms, of = "max_delay", admission.max_delay_ms, "behind"
    if reject.reason == "early":
        name, limit_ms, of = "max_ahead", admission.max_ahead_ms, "ahead of"
    apart_ms, limit = abs(event_ms - broker_ms), format_duration(limit_ms)
    apart = rough_duration(apart_ms)
    if apart == limit:
        apart += f" ({apart_ms} ms)"
    clocks = f"{apart} {of} the broker's time {format_time(broker_ms)}"
    return f"{path} = {format_time(event_ms)}: {clocks}, limit {limit} (admission.{name})"

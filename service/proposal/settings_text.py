"""Write a proposal as a short settings file: what has no default and what differs from it, with one comment a line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from service.printing import printable
from service.proposal import times
from service.proposal.names import slug
from service.proposal.proposal import Proposal, pace
from service.proposal.roles import Quantity
from service.units import format_duration

_COMMENT = 48
"""The column at which comments begin, where the setting leaves room."""


@dataclass(frozen=True, slots=True)
class Places:
    """Sections of the settings that the command line named; `input` without its fields."""

    kafka: Mapping[str, object]
    redis: Mapping[str, object]
    input: Mapping[str, object]
    service: Mapping[str, object]
    registry: Mapping[str, object] = field(default_factory=dict)
    reference: Mapping[str, object] = field(default_factory=dict)
    metrics: Mapping[str, object] = field(default_factory=dict)


def text(made: Proposal, places: Places, head: Sequence[str]) -> str:
    """Return the settings file. `head` are the comments at its begin. Text of devices appears in it only quoted, or printable."""
    return "\n".join([*(f"# {printable(line)}" for line in head), *_sections(made, places)]) + "\n"


def _sections(made: Proposal, places: Places) -> Iterator[str]:
    yield from _section("service", {name: value for name, value in places.service.items() if name != "checkpoint"})
    yield _line("checkpoint", places.service["checkpoint"], "state and position in Kafka: a folder beside this file")
    yield from _section("kafka", places.kafka)
    yield from _doubt(made, "kafka.topics")
    yield from _section("input", places.input)
    yield from _doubt(made, "input.reader_schema")
    yield from _fields(made)
    yield from _section("input.measures")
    yield from _doubt(made, "input.measures")
    yield from (
        _line(each.name, each.path if each.where is None else {"path": each.path, "where": each.where}, _range(each))
        for each in made.measures
    )
    if places.registry:
        yield from _section("registry", places.registry)
    yield from _admission(made)
    yield from _reference(made, places)
    if made.gap_ms is not None or made.status_delay_ms is not None:
        yield from _section("sessions")
    if made.gap_ms is not None:
        yield _line("gap", format_duration(made.gap_ms), pace(made.rhythm))
    if made.status_delay_ms is not None:
        yield _line("status_delay", format_duration(made.status_delay_ms), "90 % of the readings are not so late")
    names = _view_names(made.categories)
    for name in names:
        yield from _section("[views]")
        yield _line("name", names[name])
        yield _line("by", [name])
        yield _line("window", format_duration(made.window_ms))
    yield from _section("redis", places.redis)
    if places.metrics:
        yield from _section("metrics", places.metrics)


def _fields(made: Proposal) -> Iterator[str]:
    yield from _doubt(made, "input.device_id")
    if made.device is not None:
        why = f", {made.device.why}" if made.device.why else ""
        yield _line("device_id", made.device.path, f"{made.device.devices} devices in the sample{why}")
    yield from _doubt(made, "input.event_time")
    if made.clock is not None:
        yield _line("event_time", made.clock.path, times.lag(made.clock))
        if made.clock.pattern is not None:
            yield _line("event_time_pattern", made.clock.pattern)
        elif made.clock.unit not in {"ms", "logical"}:
            yield _line("event_time_unit", made.clock.unit)
    if made.text_numbers:
        yield _line("text_numbers", True, "measures or the time are texts")


def _admission(made: Proposal) -> Iterator[str]:
    limits = {"max_delay": made.max_delay_ms, "max_ahead": made.max_ahead_ms}
    given = {name: format_duration(ms) for name, ms in limits.items() if ms is not None}
    if not given and not any(setting.startswith("admission.") for setting in made.doubts):
        return
    yield from _section("admission")
    for name, side in (("max_delay", "behind"), ("max_ahead", "ahead of")):
        yield from _doubt(made, f"admission.{name}")
        if name in given:
            yield _line(name, given[name], f"some readings are that far {side} the broker's time")


def _reference(made: Proposal, places: Places) -> Iterator[str]:
    if not places.reference:
        return
    yield from _section("reference", places.reference)
    yield from _doubt(made, "reference.key")
    if made.reference_key is not None and made.reference_key != "device_id":
        yield _line("key", made.reference_key)
    yield from (_line(name, name, "of each device, from the column of that name") for name in made.limits)


def _view_names(categories: Sequence[str]) -> dict[str, str]:
    """Return the views by the columns that they group by, each with a name of its own."""
    views = {"device": "device"}
    for column in categories:
        name = slug([column])
        views[column] = name if name and name not in views.values() else f"view{len(views) + 1}"
    return views


def _doubt(made: Proposal, setting: str) -> Iterator[str]:
    if setting in made.open:
        key = setting.rpartition(".")[2]
        yield f"# TO DO: give {key}. {printable(made.open[setting])}"
    if setting in made.doubts:
        yield f"# NOT SURE: {printable(made.doubts[setting])}"


def _section(name: str, settings: Mapping[str, object] | None = None) -> Iterator[str]:
    yield ""
    yield f"[{name}]"
    yield from (_line(key, value) for key, value in (settings or {}).items())


def _line(key: str, value: object, comment: str = "") -> str:
    setting = f"{key} = {_value(value)}"
    return f"{setting:<{_COMMENT - 1}} # {printable(comment)}" if comment else setting


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_quoted(str(key))} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else _quoted(str(value))


def _quoted(text: str) -> str:
    """Return a TOML string. JSON's escapes are TOML's, except its two halves of a letter beyond U+FFFF."""
    return "".join(
        each if each.isprintable() else f"\\U{ord(each):08X}" for each in json.dumps(text, ensure_ascii=False)
    )


def _range(each: Quantity) -> str:
    share = "" if each.share == 1 else f", in {each.share:.1%} of the records"
    return f"{each.low:.6g} to {each.high:.6g}{share}"

"""InfluxDB's line protocol: a reading on each line, as Telegraf's output writes it.

    weather,site=north temperature=21.5,raining=f 1790000000000000000
    {"measurement": "weather", "tags": {"site": "north"}, "fields": {"temperature": 21.5, "raining": false}, "timestamp": ...}

The second line is how the settings see the first one. `timestamp` is in ms; the line has nanoseconds. A line without a time has
that of its record in Kafka. A record that begins with a brace is one reading: a replay sends a rejected line as such a record.
"""

import json
import re
from collections.abc import Iterator

from service.admission import arrays
from service.admission.arrays import Cut
from service.admission.formats.csv_rows import NUMBER
from service.admission.formats.ndjson import of_lines
from service.admission.formats.plain_json import Json
from service.settings import Input

_KEY = r"(?:\\.|[^\\,= ])+"
_NAME = r"(?:\\.|[^\\, ])+"
_VALUE = r'(?:"(?:\\.|[^"\\])*"|[^," \\]+)'
_LINE = re.compile(
    rf"(?P<name>{_NAME})(?P<tags>(?:,{_KEY}={_KEY})*) +(?P<fields>{_KEY}={_VALUE}(?:,{_KEY}={_VALUE})*)(?: +(?P<time>-?\d+))?",
    re.DOTALL | re.ASCII,
)
_TAG = re.compile(rf",({_KEY})=({_KEY})", re.DOTALL)
_FIELD = re.compile(rf",?({_KEY})=({_VALUE})", re.DOTALL)
_ESCAPE = re.compile(r"\\([,= ])")
_ESCAPE_IN_TEXT = re.compile(r'\\(["\\])')
_TRUTH = {
    **dict.fromkeys(("t", "T", "true", "True", "TRUE"), "true"),
    **dict.fromkeys(("f", "F", "false", "False", "FALSE"), "false"),
}
_LONGEST = 1 << 20
"""Bytes of a line."""


class LineProtocol(Json):
    """A line that is none is `undecodable` alone. Comments and blank lines are skipped."""

    def cut(self, value: bytes, form: Input, broker_ms: int | None = None) -> Cut:
        packed = arrays.unpacked(value, int(form.max_array_bytes), form.place)
        if packed.lstrip().startswith(b"{"):
            return Cut(packed)
        lines = [_reading(each, broker_ms) for each in _lines(packed)]
        return Cut(packed, of_lines(packed, lines).each)

    def looks_alike(self, value: bytes) -> bool:
        lines = [each.decode(errors="replace") for each in _lines(value)]
        return bool(lines) and all(_LINE.fullmatch(each) for each in lines[:3]) and value[:1] not in {b"{", b"["}


def _lines(text: bytes) -> Iterator[bytes]:
    for line in text.split(b"\n"):
        stripped = line.strip(b" \t\r")
        if stripped and not stripped.startswith(b"#"):
            yield stripped


def _reading(line: bytes, broker_ms: int | None) -> bytes:
    """Return a line as JSON; the line itself where it is none, which no decoder reads."""
    try:
        match = _LINE.fullmatch(line.decode()) if len(line) <= _LONGEST else None
    except UnicodeDecodeError:
        match = None
    fields = None if match is None else [(_plain(key), _value(each)) for key, each in _FIELD.findall(match["fields"])]
    if match is None or fields is None or not all(each for _, each in fields):
        return b"no line protocol: " + line
    tags = {_plain(key): _plain(each) for key, each in _TAG.findall(match["tags"])}
    members = ",".join(f"{json.dumps(key)}:{each}" for key, each in fields)
    time = str(broker_ms if broker_ms is not None else "null")
    if match["time"] is not None:
        ms, rest = divmod(int(match["time"][:30]), 1_000_000)
        time = f"{ms}.{rest:06}" if ms >= 0 else str(ms)
    head = f'{{"measurement":{json.dumps(_plain(match["name"]))},"tags":{json.dumps(tags)}'
    return f'{head},"fields":{{{members}}},"timestamp":{time}}}'.encode()


def _plain(text: str) -> str:
    return _ESCAPE.sub(r"\1", text)


def _value(text: str) -> str:
    """Return the JSON of a field's value, an empty text for none."""
    if text.startswith('"'):
        return json.dumps(_ESCAPE_IN_TEXT.sub(r"\1", text[1:-1]))
    if text in _TRUTH:
        return _TRUTH[text]
    number = text[:-1] if text[-1] in "iu" else text
    return number if NUMBER.fullmatch(number.removeprefix("+")) and not number.startswith("+") else ""

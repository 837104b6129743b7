"""InfluxDB's line protocol: a reading on each line, as Telegraf's output writes it.

    weather,site=north temperature=21.5,raining=f 1790000000000000000
    {"measurement": "weather", "tags": {"site": "north"}, "fields": {"temperature": 21.5, "raining": false},
     "timestamp": 1790000000000.000000, "time": 1790000000000000000}

The JSON is how the settings see the line. `timestamp` is in ms, of the line's nanoseconds; `time` is the line's number as it is,
for writers with another precision. A line without a time has that of its record in Kafka.
"""

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import cast

from service.admission.arrays import MAX_READINGS, UNDECODABLE, UnreadableArrayError
from service.admission.formats.csv_rows import NUMBER
from service.admission.formats.plain_json import Several
from service.settings import Input

_KEY = r"(?:\\[^\n]|[^\\,= \n])++"
_NAME = r"(?:\\[^\n]|[^\\, \n])++"
_VALUE = r'(?:"(?:\\.|[^"\\])*+"|[^," \\\n]++)'
_FIELDS = rf"{_KEY}={_VALUE}(?:,{_KEY}={_VALUE})*"
_LINE = re.compile(
    rf"(?P<name>{_NAME})(?P<tags>(?:,{_KEY}={_KEY})*) +(?P<fields>{_FIELDS})(?: +(?P<time>-?\d+))?[ \t\r]*(?:\n|\Z)",
    re.DOTALL | re.ASCII,
)
_TAG = re.compile(rf",({_KEY})=({_KEY})", re.DOTALL)
_FIELD = re.compile(rf",?({_KEY})=({_VALUE})", re.DOTALL)
_GO_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_ESCAPE = re.compile(r"\\([,= ])")
_ESCAPE_IN_NAME = re.compile(r"\\([, ])")
_LONGEST = 1 << 20
"""Characters of a line: 100,000 tags take a second."""
_ESCAPE_IN_TEXT = re.compile(r'\\(["\\])')
_TRUTH = {
    **dict.fromkeys(("t", "T", "true", "True", "TRUE"), "true"),
    **dict.fromkeys(("f", "F", "false", "False", "FALSE"), "false"),
}
_BLANKS = re.compile(r"(?:\s|#[^\n]*(?:\n|\Z))*+")


class LineProtocol(Several):
    """A line that is none is `undecodable` alone. Comments and blank lines are skipped."""

    def readings(self, packed: bytes, _form: Input, broker_ms: int | None) -> Iterator[bytes]:
        try:
            text = packed.decode()
        except UnicodeDecodeError as error:
            raise UnreadableArrayError(UNDECODABLE, f"is not UTF-8, at byte {error.start}") from error
        yield from (_reading(each, broker_ms) for each in _lines(text))

    def looks_alike(self, value: bytes) -> bool:
        try:
            lines = list(islice(_lines(value.decode()), 3))
        except UnicodeDecodeError:  # packed bytes may have a blank and "=" by chance
            return False
        return bool(lines) and value[:1] not in {b"{", b"["} and not any(isinstance(each, str) for each in lines)


def _lines(text: str) -> Iterator[re.Match[str] | str]:
    """Yield each line, as it is where it is none. A text between quotes may go on over several lines."""
    at, found = 0, 0
    while (at := cast("re.Match[str]", _BLANKS.match(text, at)).end()) < len(text) and found <= MAX_READINGS:
        line, end = _LINE.match(text, at, at + _LONGEST), text.find("\n", at)
        if line is not None and line.end() == at + _LONGEST < len(text):
            line = None
        yield text[at : None if end < 0 else end] if line is None else line
        at = line.end() if line is not None else len(text) if end < 0 else end + 1
        found += 1


def _reading(line: re.Match[str] | str, broker_ms: int | None) -> bytes:
    """Return a line as JSON; one that no decoder reads for what is no line."""
    if isinstance(line, str):
        return b"no line protocol: " + line.encode()
    fields = [(_plain(key), _value(each)) for key, each in _FIELD.findall(line["fields"])]
    if not all(each for _, each in fields):
        return b"no line protocol: " + line[0].encode()
    tags = {_plain(key): _plain(each) for key, each in _TAG.findall(line["tags"])}
    members = ",".join(f"{json.dumps(key)}:{each}" for key, each in fields)
    time = str(broker_ms if broker_ms is not None else "null")
    if line["time"] is not None:
        whole = int(line["time"][:30])
        ms, rest = divmod(whole, 1_000_000)
        time = (f"{ms}.{rest:06}" if ms >= 0 else str(ms)) + f',"time":{whole}'
    name = _ESCAPE_IN_NAME.sub(r"\1", line["name"])
    head = f'{{"measurement":{json.dumps(name)},"tags":{json.dumps(tags)}'
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
    if NUMBER.fullmatch(number):
        return number
    # Go writes and reads numbers that are none of JSON: 1. and .5, +1, 007.
    return str(float(number)).replace("inf", "1e999") if _GO_NUMBER.fullmatch(number) else ""

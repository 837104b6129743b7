"""Sources: where a value of a reading comes from. The device id, the event time, measures and columns are given by sources.

    env.temperature        a field of the record (field_path.py)
    $key                   the Kafka record's key as text
    $key.site.id           a field of the key, which is a JSON object
    $header.NAME           the last of the record's Kafka headers with this name, as text
    $topic                 the topic's name
    $topic/PATTERN/        the part of the topic's name that the pattern's named group matches
    $partition             the partition's number, for a column
    $timestamp             the record's time in Kafka, for the event time
    'line 4'               a constant text, for the device id and a column

Settings keep a source in one spelling, so that equal sources are equal texts. The patterns are those of RE2, whose time grows
with the text alone. They are matched with the topics of the settings, once.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from service.settings import field_path

Kind = Literal["field", "key", "header", "topic", "partition", "timestamp", "constant"]

HEADER = "$header."
"""Begins each source that is a header."""
RECORD_KEY, TOPIC, PARTITION, TIMESTAMP = "$key", "$topic", "$partition", "$timestamp"
WORDS = (RECORD_KEY, "$key.PATH", "$header.NAME", TOPIC, "$topic/PATTERN/", PARTITION, TIMESTAMP)
"""All sources that begin with a dollar sign, for messages."""
SEPARATOR, _ESCAPE = "/", "\\"
"""Between the parts of a device id; each of the two in a part has the second one before it."""
DEVICE: tuple[Kind, ...] = ("field", "key", "header", "topic", "constant")
"""The kinds of sources that a device id, and each of its parts, may have."""
TIME: tuple[Kind, ...] = ("field", "key", "header", "timestamp")
NUMBER: tuple[Kind, ...] = ("field", "key", "header")
COLUMN: tuple[Kind, ...] = (*DEVICE, "partition")
_LONGEST_PATTERN = 500
_CONSTANT = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed source. `names` is the path in the record or the key, or the header's name; `text` the pattern or the constant."""

    kind: Kind
    names: tuple[str, ...] = ()
    text: str = ""

    def __str__(self) -> str:
        path = path_of(self)
        if self.kind == "field":
            return path
        if self.kind == "constant":
            return "'" + self.text.replace("'", "''") + "'"
        pattern = f"/{self.text}/" if self.text else ""
        return f"${self.kind}{'.' if path else ''}{path}{pattern}"

    @property
    def in_record(self) -> bool:
        """Whether it is a field of the record's value."""
        return self.kind == "field"

    @property
    def in_document(self) -> bool:
        """Whether it is a field of the key, which is a JSON object."""
        return self.kind == "key" and bool(self.names)

    def of_topic(self, topic: str) -> str | None:
        """Return the topic's name, or the part that the pattern matches; None if it matches nothing, or an empty text."""
        if not self.text:
            return topic
        [found] = _matched(topic, self.text).to_pylist()
        return next(iter(found.values())) or None if found else None


@lru_cache(maxsize=4096)
def parse(text: str) -> Source:
    """Return the source of a text of the settings. Raises ValueError."""
    if constant := _CONSTANT.fullmatch(text):
        return _constant(constant[1].replace("''", "'"), text)
    if not text.startswith("$"):
        return Source("field", field_path.parts(text))
    if text in {RECORD_KEY, TOPIC, PARTITION, TIMESTAMP}:
        return Source(text[1:])  # type: ignore[arg-type]
    if text.startswith("$topic/"):
        return Source("topic", text=_pattern(text))
    word, _, path = text.partition(".")
    if word == RECORD_KEY and path:
        return Source("key", field_path.parts(path))
    if word == "$header" and path:
        names = field_path.parts(path)
        if len(names) > 1:
            raise ValueError(f"{text!r}: a header has one name. A name with a dot is in backticks: $header.`{path}`")
        return Source("header", names)
    msg = f"{text!r} is no source; there are {', '.join(WORDS)}. A field of the record with this name is in backticks: `{text}`"
    raise ValueError(msg)


def normal(text: str, kinds: Sequence[Kind], of: str, *, in_table: bool = False) -> str:
    """Return a source in its one spelling. Raises ValueError, also for a kind that `of`, the setting, does not take.

    A path that looks like an expression is refused, unless it is the `path` of a table.
    """
    if not in_table and not is_word(text):
        field_path.of_field(text)
    found = parse(text)
    if found.kind not in kinds:
        shown = f"a constant, {text}," if found.kind == "constant" else f"{text!r}"
        raise ValueError(f"{shown} cannot be {of}; it may be {', '.join(map(_NAMES.__getitem__, kinds))}")
    return str(found)


def path_of(given: Source) -> str:
    """Return the path of a source in the record or in the key."""
    return field_path.spelled(given.names)


def is_word(text: str) -> bool:
    """Whether a text is no path of the record: it begins with a dollar sign, or is a constant."""
    return text.startswith(("$", "'"))


def in_record(text: str) -> bool:
    """Whether a source of the settings is a field of the record."""
    return not is_word(text)


def escaped(part: str) -> str:
    """Return a part of a device id as it stands in the id."""
    return part.replace(_ESCAPE, _ESCAPE * 2).replace(SEPARATOR, _ESCAPE + SEPARATOR)


_NAMES: dict[Kind, str] = {
    "field": "a path in the record",
    "key": "$key, $key.PATH",
    "header": "$header.NAME",
    "topic": "$topic, $topic/PATTERN/",
    "partition": PARTITION,
    "timestamp": TIMESTAMP,
    "constant": "a constant in '...'",
}


def _constant(value: str, text: str) -> Source:
    if not value.strip() or not value.isprintable():
        raise ValueError(f"{text}: a constant is a text that is not blank, without control characters")
    return Source("constant", text=value)


def _pattern(text: str) -> str:
    """Return the pattern of `$topic/PATTERN/`. Raises ValueError for one that has not one named group."""
    pattern = text.removeprefix("$topic/").removesuffix("/")
    if not text.endswith("/") or not pattern:
        raise ValueError(f"{text!r}: a part of the topic is $topic/PATTERN/, such as '$topic/plant-(?P<plant>[^-]+)/'")
    if len(pattern) > _LONGEST_PATTERN:
        raise ValueError(f"{text[:40]!r}...: the pattern has {len(pattern)} characters, limit {_LONGEST_PATTERN}")
    try:
        groups = _matched("", pattern).type.num_fields
    except ValueError as error:
        why = str(error).partition("Invalid regular expression: ")[2] or str(error)
        raise ValueError(f"{text!r}: {why}. A pattern has one group with a name, such as (?P<plant>[^-]+)") from error
    if groups != 1:
        msg = f"{text!r}: the pattern has {groups} groups; it needs one, with a name, such as (?P<plant>[^-]+)"
        raise ValueError(msg)
    return pattern


def _matched(topic: str, pattern: str) -> Any:
    """Return the groups of the pattern by name, an Arrow array of one struct. Raises ValueError."""
    # Most settings have no pattern, and a command starts without Arrow.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    return pc.extract_regex(pa.array([topic]), pattern)

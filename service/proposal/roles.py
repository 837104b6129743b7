"""Choose the device id and the measures among a sample's fields, by their names and values."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.proposal.columns import ARRAY, BOOLEAN, NUMBER, OBJECT, TEXT, Column, Columns
from service.proposal.names import (
    DEVICE_WORDS,
    GENERIC,
    ID_WORDS,
    PLACE_WORDS,
    VAGUE_WORDS,
    is_readable,
    is_text,
    measure_name,
    words,
    words_set,
)
from service.proposal.times import MOSTLY, number_of, says_time, unit_of
from service.settings import LARGEST, RECORD_KEY, condition, field_path, source

FEW = 50
"""More values than this are no category."""
MANY = 20
"""With fewer records than this a value that never repeats means nothing."""
MOST_MEASURES = 64
STRAY = 0.01
"""Share of a field's values that may be no numbers where the others are: a broken sensor is no reason to lose the measure."""
LEAST, SURE, AHEAD = 1.0, 3.0, 1.5
"""The score of a device id that is proposed, and of one that is sure; any other field of other devices has so much less."""
_ID_BYTES = 256
_NOT_A_DEVICE = words_set(
    "message msg correlation event request session transaction trace batch client user join token application app "
    "parameter type code context trip vendor network version metadata"
)
_NO_QUANTITY = words_set(
    "id uid uuid version seq sequence port code type index epoch vendor serial flag lat latitude lon lng longitude "
    "year month day squawk source schema revision"
)
"""Words of numbers whose mean says nothing."""
_QUANTITIES = words_set(
    "parameter metric quantity measurement measure property variable field attribute unit kind observed phenomenon "
    "channel type key class"
)
"""Words of a field that says what the value beside it is."""


@dataclass(frozen=True, slots=True)
class Sender:
    """A field that may be the device id."""

    path: str
    score: float
    devices: int
    why: str
    values: Sequence[object]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A field that becomes a measure, with the range of its numbers in the sample. `stray` counts values that are rejected.

    `where` is the condition of a measure whose field has the values of several.
    """

    name: str
    path: str
    low: float
    high: float
    share: float
    stray: int = 0
    where: str | None = None
    is_text: bool = False
    """Whether numbers are in texts."""
    is_whole: bool = False
    """Whether no number has a fraction."""


def senders(columns: Columns, times: Collection[str], known: Collection[str] = ()) -> list[Sender]:
    """Return the fields that may be the device id, the likeliest first. `known` are the reference's ids, if there are any."""
    key = columns.of.get(RECORD_KEY)
    fields = (each for each in columns.leaves() if each is key or (each.path not in times and is_readable(each.parts)))
    found = [_sender(column, key, known) for column in fields if _may_be_id(column)]
    return sorted((each for each in found if each.score >= LEAST), key=lambda each: -each.score)


def is_json(text: str) -> bool:
    """Whether a text is a string, an object or an array of JSON, which as an id would keep its quotes and brackets."""
    try:
        return text[:1] in {'"', "{", "["} and isinstance(json.loads(text), str | dict | list)
    except (ValueError, RecursionError):
        return False


def is_same(one: Sender, other: Sender) -> bool:
    """Whether two fields tell the same devices apart."""
    pairs = {(a, b) for a, b in zip(one.values, other.values, strict=True) if a is not None and b is not None}
    return len(pairs) == one.devices == other.devices


def quantities(columns: Columns, device: str, times: Collection[str]) -> tuple[list[Quantity], dict[str, str]]:
    """Return the measures, and for other fields with numbers the reason why they are none."""
    chosen: list[Quantity] = []
    left_out: dict[str, str] = {}
    taken = {field_path.parts(path) for path in {device, *times} - {""}}
    for column in columns.fields():
        if column.path == device or column.path in times:
            continue
        why = _no_measure(column, columns)
        if why is None and _crosses(field_path.parts(column.path), taken):
            why = "it lies in the path of another setting, or has one in it"
        if why is None and len(chosen) == MOST_MEASURES:
            why = f"{MOST_MEASURES} measures are enough to begin with"
        if why is None:
            taken.add(field_path.parts(column.path))
            name = measure_name(column.parts, {each.name for each in chosen})
            numbers = list(_numbers(column))
            stray = sum(value != "" for value in column.present) - len(numbers)
            in_text = column.kinds[TEXT] > stray
            is_whole = all(float(each).is_integer() for each in numbers)
            chosen.append(
                Quantity(
                    name,
                    column.path,
                    min(numbers),
                    max(numbers),
                    column.share,
                    stray,
                    is_text=in_text,
                    is_whole=is_whole,
                )
            )
        elif why:
            left_out[column.path] = why
    # Without a fraction in any text, a text is rather the code of something.
    if any(not each.is_text for each in chosen) and not any(each.is_text and not each.is_whole for each in chosen):
        why = "whole numbers in texts, which may be codes; text_numbers = true reads them"
        left_out |= {each.path: why for each in chosen if each.is_text}
        chosen = [each for each in chosen if not each.is_text]
    return chosen, left_out


def _crosses(names: tuple[str, ...], others: Collection[tuple[str, ...]]) -> bool:
    """Whether a path is one of the others, lies in one or has one in it: settings refuse such paths."""
    return any(names[: len(each)] == each[: len(names)] for each in others)


def kinds_of_value(columns: Columns, device: Sender | None, measures: Sequence[Quantity]) -> Column | None:
    """Return the field that says what a generic measure such as `value` is, if one device sends several of them."""
    if device is None or not any(field_path.parts(each.path)[-1].lower() in GENERIC for each in measures):
        return None
    for column in columns.fields():
        is_named = bool(_QUANTITIES & set(words(column.parts[-1])))
        if is_named and column.is_all(TEXT) and 2 <= column.distinct <= FEW and column.path != device.path:
            pairs = {
                (d, k) for d, k in zip(device.values, column.values, strict=True) if d is not None and k is not None
            }
            if len(pairs) > device.devices:
                return column
    return None


def of_kinds(columns: Columns, kinds: Column, measures: Sequence[Quantity]) -> list[Quantity]:
    """Return measures with one for each kind of the first generic one, such as `value`."""
    found = []
    generic = next(each for each in measures if field_path.parts(each.path)[-1].lower() in GENERIC)
    values = list(zip(kinds.values, columns.of[generic.path].values, strict=True))
    taken = {each.name for each in measures if each is not generic}
    for text in sorted(filter(is_text, {str(each) for each in kinds.present})):
        numbers = [_float(each) for name, each in values if name == text and _is_number(each)]
        if numbers:
            name = measure_name([text], taken)
            taken.add(name)
            where = condition.spelled(kinds.path, text)
            share = len(numbers) / max(1, len(values))
            found.append(Quantity(name, generic.path, min(numbers), max(numbers), share, where=where))
    return [*(each for each in measures if each is not generic), *found]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def categories(table: Mapping[str, Sequence[str | None]], key: str) -> Iterator[str]:
    """Yield the columns of the reference with few values, several devices each."""
    for name, values in table.items():
        present = [value for value in values if value is not None]
        if name != key and 2 <= len(set(present)) <= min(FEW, len(present) // 2):
            yield name


def _may_be_id(column: Column) -> bool:
    if column.is_all(TEXT):
        return all(len(value.encode(errors="replace")) <= _ID_BYTES for value in column.present)
    return column.is_whole() and not (says_time(column.parts[-1]) and unit_of(column.present) is not None)


def _sender(column: Column, key: Column | None, known: Collection[str]) -> Sender:
    name, above = set(words(column.parts[-1])), {word for part in column.parts[:-1] for word in words(part)}
    score, reasons = _by_name(column, key, name, above)
    ids = set(map(str, column.present))
    many, devices = len(column.present), len(ids)
    if devices == 1:
        score -= 1.0
    elif devices == many and many >= MANY:
        score -= 1.0 if name & DEVICE_WORDS else 4.0  # a large fleet, or the id of a message
    elif devices > many / 2 and many >= MANY:
        score -= 1.0
    elif devices >= 3:
        score += 0.5
    if column.share < 0.99:
        score -= 3.0
    if key is not None and column is not key and _same_as_key(column, key):
        score += 3.0
        reasons.append("the same as the record's key")
    if known and len(ids & set(known)) >= 0.5 * devices:
        score += 4.0
        reasons.append("in the reference")
    return Sender(
        column.path, score, devices, ", ".join(reasons), [None if v is None else str(v) for v in column.values]
    )


def _by_name(column: Column, key: Column | None, name: set[str], above: set[str]) -> tuple[float, list[str]]:
    """Return the score that a column has by the words of its name, and reasons for people."""
    score, reasons = 0.0, []
    is_id = bool(name & ID_WORDS)
    if column is key:
        # JSON as an id would keep its quotes, or be a document.
        score, reasons = 1.0 if all(map(is_json, column.present)) else 2.5, ["the record's key"]
    elif column.path == source.TOPIC:
        score, reasons = 2.0, ["the topic"]
    elif column.parts[-1] == field_path.KEY:
        score, reasons = 3.0, ["the name of a member of the record"]
    elif name & DEVICE_WORDS or (is_id and name & VAGUE_WORDS):
        score = 4.0 if is_id else 3.5
    elif is_id and above & DEVICE_WORDS:
        score = 3.5
    elif name & PLACE_WORDS:
        score = 2.0 if is_id else 1.0
    elif is_id:
        score = 2.0 if len(name) == 1 else 1.0
    if column.path.startswith(f"{RECORD_KEY}.") and score > 0:
        score, reasons = score + 1.0, ["in the record's key"]
    elif source.is_word(column.path) and column is not key and column.path != source.TOPIC and score > 0:
        reasons = ["a header"]
    score -= 2.0 * bool(name & _NOT_A_DEVICE) + 0.25 * ("name" in name)
    return score, reasons


def _same_as_key(column: Column, key: Column) -> bool:
    """Whether the record's key is the field: as it is, or as a string of JSON."""
    texts = list(map(str, column.values))
    return texts == key.values or [json.dumps(text, ensure_ascii=False) for text in texts] == key.values


def _no_measure(column: Column, columns: Columns) -> str | None:
    """Why a field is no measure: "" for what has no numbers, None for a measure."""
    if column.is_all(ARRAY):
        return "an array; a measure is one number of the record" if _has_number(column.present[0]) else ""
    if not column.kinds[NUMBER] and not _is_numeric_text(column):
        return ""
    if not is_readable(column.parts):
        return "settings cannot name it: a backtick or an invisible character in the name, or * alone"
    return _rejected(column, columns) or _no_quantity(column)


def _rejected(column: Column, columns: Columns) -> str | None:
    """Why records would be rejected if the field were a measure."""
    numbers, present = sum(1 for _ in _numbers(column)), sum(value != "" for value in column.present)
    if not column.is_all(NUMBER) and numbers < (1 - STRAY) * present:
        others = ", ".join(sorted(set(column.kinds) - {NUMBER}))
        return f"also {others}: such a record would be rejected"
    if any(not columns.of[field_path.spelled(column.parts[:n])].is_all(OBJECT) for n in range(1, len(column.parts))):
        return "its parent is not always an object: such a record would be rejected"
    if numbers < (1 - STRAY) * present:
        return "values that are not finite, or beyond 1e140: such a record would be rejected"
    return None


def _numbers(column: Column) -> Iterator[float]:
    """Yield a field's values that admission takes for a measure."""
    for value in column.present:
        number = number_of(value)
        if number is not None and math.isfinite(_float(number)) and abs(_float(number)) <= LARGEST:
            yield number


def _no_quantity(column: Column) -> str | None:
    name = set(words(column.parts[-1]))
    if name & _NO_QUANTITY:
        return "an id, a place or a code by its name"
    if says_time(column.parts[-1]) and (
        name <= {"ts", "time", "timestamp"} or unit_of(list(_numbers(column))) is not None
    ):
        return "a time"
    return None


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _has_number(value: object, depth: int = 4) -> bool:
    if isinstance(value, Mapping):
        return depth > 0 and any(_has_number(each, depth - 1) for each in value.values())
    if isinstance(value, list):
        return depth > 0 and any(_has_number(each, depth - 1) for each in value[:3])
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_numeric_text(column: Column) -> bool:
    if not column.is_all(TEXT, BOOLEAN) or {"id", "name", "version"} & set(words(column.parts[-1])):
        return False
    present = [value for value in column.present if value != ""]
    return bool(present) and sum(number_of(value) is not None for value in present) >= MOSTLY * len(present)

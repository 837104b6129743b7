"""CSV with a header row: each row below it is a reading, its fields by the names of the header.

A text that is a number of JSON is a number, an empty one is null, any other a text. The device id and columns are texts. The
separator is the one of , ; tab and | that the header has most of.
"""

import csv
import io
import json
import re
from collections.abc import Iterator

from service.admission.arrays import UNDECODABLE, UnreadableArrayError
from service.admission.formats.plain_json import Several
from service.settings import Input, field_path

_SEPARATORS = ",;\t|"
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


class Csv(Several):
    """A row with more fields than the header is `undecodable` alone; one with fewer lacks the last ones."""

    def readings(self, packed: bytes, form: Input, _broker_ms: int | None) -> Iterator[bytes]:
        try:
            text = packed.decode("utf-8-sig")
            separator = max(_SEPARATORS, key=text.partition("\n")[0].count)
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
            rows = (row for row in reader if row)
            names, texts = _header(next(rows, [])), texts_of(form)
            yield from (_object(names, row, texts) for row in rows)
        except (UnicodeDecodeError, csv.Error) as error:
            raise UnreadableArrayError(UNDECODABLE, f"is no CSV: {error}") from error

    def looks_alike(self, value: bytes) -> bool:
        try:
            lines = value.decode().splitlines()[:3]
            if len(lines) < 2 or lines[0][:1] in {"", "{", "["}:
                return False
            separator = max(_SEPARATORS, key=lines[0].count)
            header, *rows = csv.reader(lines, delimiter=separator)
        except (UnicodeDecodeError, csv.Error):
            return False
        are_names = not any(map(NUMBER.fullmatch, header))
        return len(header) > 1 and are_names and all(len(row) == len(header) for row in rows)


def texts_of(form: Input) -> set[str]:
    """Return the fields that are texts, whatever is in them: of the device id, columns and conditions."""
    asked = (each.path for measure in form.measures.values() for each in measure.conditions)
    return {field_path.parts(path)[0] for path in (*form.device_fields, *form.column_fields, *asked)}


def typed(text: str) -> str:
    """Return a text as JSON has it: a number, null, or a text."""
    text = text.strip()
    return "null" if not text else text if NUMBER.fullmatch(text) else json.dumps(text)


def _header(row: list[str]) -> list[str]:
    names = [each.strip() for each in row]
    if not names or len({*names}) < len(names):
        raise UnreadableArrayError(UNDECODABLE, "is no CSV: it has no header, or one with a name twice")
    if any(not each or NUMBER.fullmatch(each) for each in names):
        raise UnreadableArrayError(UNDECODABLE, "its first row is no header: a name is blank or a number")
    return names


def _object(names: list[str], row: list[str], texts: set[str]) -> bytes:
    if len(row) > len(names):
        return f"a row of {len(row)} fields below a header of {len(names)}".encode()
    members = (
        f"{json.dumps(name)}:{json.dumps(each) if name in texts and each else typed(each)}"
        for name, each in zip(names, row, strict=False)
    )
    return f"{{{','.join(members)}}}".encode()

"""NDJSON, also called JSON lines: a reading on each line of a record."""

from service.admission import arrays
from service.admission.arrays import Cut
from service.admission.formats.plain_json import Json
from service.settings import Input

_BLANKS = b" \t\r"


class Ndjson(Json):
    """Lines are readings, blank ones are skipped. A line that is no JSON is `undecodable` alone."""

    def cut(self, value: bytes, form: Input, _broker_ms: int | None = None) -> Cut:
        text = arrays.unpacked(value, int(form.max_array_bytes), form.place)
        lines = (each for line in text.split(b"\n") if (each := line.strip(_BLANKS)))
        found = arrays.collected(lines, int(form.max_array_bytes), form.place)
        return Cut(found[0]) if len(found) == 1 else Cut(text, found)  # a single line is the reading that the record is

    def looks_alike(self, value: bytes) -> bool:
        lines = [each for line in value.split(b"\n") if (each := line.strip(_BLANKS))]
        return len(lines) > 1 and all(each.startswith(b"{") for each in lines) and lines[0].endswith(b"}")

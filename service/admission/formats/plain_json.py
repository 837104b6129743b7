"""JSON: one object a record, or several: an array (service/admission/arrays.py), or readings within it (nested.py)."""

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as t

from service.admission import arrays, json_record, nested
from service.admission.formats.format import CORRUPT, END, TEXT, Dissected, Format, Plan, Schemas
from service.settings import Input, field_path

_BLANKS = " \t\n\r"
_EMPTY_OBJECT = r"^\{[ \t\n\r]*\}$"
_KINDS = {list: "an array", str: "text", int: "a number", float: "a number", bool: "true or false", type(None): "null"}


class JsonText(Format):
    """A format that is read as a JSON text; of subclasses, what makes the text.

    The end mark takes the place of the last brace, with the brace behind it. Spark's parser ignores text after the first value
    (4.1.4): if that ends before the last brace, it has no mark.
    """

    def record(self, plan: Plan) -> Column:
        text = F.col(TEXT + plan.name)
        is_object = text.startswith("{") & text.endswith("}")
        content = text.cast("binary")
        comma = F.when(text.startswith('{"') | ~text.rlike(_EMPTY_OBJECT), ",").otherwise("")
        marked = F.concat(
            F.substring(content, F.lit(1), F.length(content) - 1).cast("string"),
            comma,
            F.lit(f'"{END}":"'),
            self.mark(),
            F.lit('"}'),
        )
        options = {
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": CORRUPT,
            "allowSingleQuotes": "false",
            # A number that is not finite is no JSON, but in a field that is not mapped it must not decide about the record.
            "allowNonNumericNumbers": "true",
        }
        fields = plan.fields()
        found = F.from_json(marked, fields, options)
        return F.when(is_object, found.cast(_without_case(fields)) if plan.form.has_twins else found)

    def mark(self) -> Column:
        return F.xxhash64("value").cast("string")

    def read(self, found: Dissected, _value: bytes, form: Input, _schemas: Schemas) -> Dissected:
        return replace(found, read=found.fields, problems=tuple(json_record.wrong_types(found.fields, form)))

    def refusal(self, found: Dissected) -> str:
        return "no JSON" if found.why.startswith("is not") else "JSON, but no object"


def _without_case(fields: t.StructType) -> t.StructType:
    """Return a type with the names of fields that differ also where case is ignored."""
    return t.StructType(
        [
            t.StructField(
                each.name if each.name in {END, CORRUPT} else field_path.without_case(each.name),
                _without_case(each.dataType) if isinstance(each.dataType, t.StructType) else each.dataType,
            )
            for each in fields
        ]
    )


class Json(JsonText):
    """JSON without a schema id."""

    has_escapes = True

    def framing(self, _plan: Plan) -> Column:
        return F.when(F.col("value").isNull(), "undecodable")

    def text(self, plan: Plan, is_mine: Column | None) -> Column | None:
        is_read = F.length("value") <= plan.max_bytes
        text = F.when(is_read if is_mine is None else is_mine & is_read, self.body(plan)).cast("string")
        return F.trim(F.try_validate_utf8(text), F.lit(_BLANKS))

    def body(self, _plan: Plan) -> Column:
        """Return the bytes of the JSON text."""
        return F.col("value")

    def body_of(self, value: bytes, form: Input) -> bytes:
        """Return the bytes of the JSON text of a value that decodes."""
        return self.cut(value, form).text

    def cut(self, value: bytes, form: Input, _broker_ms: int | None = None) -> arrays.Cut:
        if not form.array:
            return arrays.Cut(value)
        limit = int(form.max_array_bytes)
        text = arrays.unpacked(value, limit, form.place)
        if form.array is True:
            return arrays.Cut(text, arrays.elements(text))
        return arrays.Cut(text, nested.readings(text, field_path.parts(form.array), limit, form.place))

    def fields(self, value: bytes, form: Input, _schemas: Schemas) -> Dissected:
        try:
            found = self.cut(value, form)
        except arrays.UnreadableArrayError as error:
            return Dissected({}, {}, stop=0, why=str(error))
        if found.readings is None:
            return json_fields(found.text)
        return Dissected({}, {}, stop=0, why=f"is an array of {len(found.readings)} readings")

    def text_problems(self, texts: Mapping[str, str], value: bytes, form: Input, _schemas: Schemas) -> Iterator[str]:
        # Spark reads half of a character as "?": the service cannot tell the two apart.
        if any("?" in text for text in texts.values()) and json_record.HALF.search(self.body_of(value, form).decode()):
            yield 'the record has an escape for half of a character, and a device id or a column has a "?"'

    def encode(self, _value: bytes, record: Mapping[str, Any], _form: Input, _schemas: Schemas) -> bytes:
        return json.dumps(record, separators=(",", ":")).encode()


class Several(Json):
    """A format whose records hold several readings, in another form than JSON.

    A record that begins with a brace is one reading: a replay sends a rejected reading as such a record.
    """

    def cut(self, value: bytes, form: Input, broker_ms: int | None = None) -> arrays.Cut:
        limit = int(form.max_array_bytes)
        packed = arrays.unpacked(value, limit, form.place)
        if packed.lstrip().startswith(b"{"):
            return arrays.Cut(packed)
        return arrays.Cut(packed, arrays.collected(self.readings(packed, form, broker_ms), limit, form.place))

    @abstractmethod
    def readings(self, packed: bytes, form: Input, broker_ms: int | None) -> Iterator[bytes]:
        """Yield the readings of a record as JSON. Raises UnreadableArrayError. `broker_ms` is as for `cut`."""


def json_fields(value: bytes) -> Dissected:
    """Decode an object of JSON."""
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return Dissected({}, {}, stop=error.start, why=f"is not UTF-8: 0x{value[error.start]:02x}")
    try:
        document = json_record.value_of(text.strip(_BLANKS))
    except json.JSONDecodeError as error:
        stop = len(text) - len(text.lstrip(_BLANKS)) + error.pos
        return Dissected({}, {}, stop=len(text[:stop].encode()), why=f"is not JSON: {error.msg}")
    except (ValueError, RecursionError) as error:
        return Dissected({}, {}, stop=0, why=str(error))
    if not isinstance(document, dict):
        return Dissected({}, {}, stop=0, why=f"is {_KINDS[type(document)]} in JSON, expected an object")
    return Dissected(document, {})

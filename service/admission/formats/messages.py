"""Protobuf behind a header that names its schema (framings.py).

Python makes a struct of the mapped fields (service/admission/protobuf.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf import json_format
from pyspark.sql import Column
from pyspark.sql import functions as F

from service.admission import json_record, protobuf
from service.admission.formats import framings
from service.admission.formats.format import TEXT, Dissected, Format, Plan, Schemas
from service.settings import Input


class Protobuf(Format):
    """Messages of google.protobuf behind a schema id."""

    suffix = "protobuf"

    def framing(self, plan: Plan) -> Column:
        framing, form = framings.of(plan.form), plan.form
        if form.others == "reject" or form.record_type is None or not framing.heads:
            return framing.framing(plan)
        body = framing.body(plan)
        schemas = {n: protobuf.files_of(each) for n, each in plan.schemas.schemas.items()}
        others = {n: framings.begins(body, protobuf.other_messages(files, form)) for n, files in schemas.items()}
        return framing.framing(plan, others)

    def text(self, plan: Plan, is_mine: Column | None) -> Column | None:
        value = F.when(F.length("value") <= plan.max_bytes, framings.of(plan.form).value(plan))
        if is_mine is not None:
            value = F.when(is_mine, value)
        return protobuf.Unpacker.of(plan.form, plan.schemas.schemas).column(value, plan.form)

    def record(self, plan: Plan) -> Column:
        return F.col(TEXT + plan.name)

    def mark(self) -> Column:
        return F.lit(True)

    def fields(self, value: bytes, form: Input, schemas: Schemas) -> Dissected:
        framing = framings.of(form)
        if stopped := framing.stopped(value, form, schemas):
            return stopped
        number = framing.id_of(value, form, schemas)
        try:
            return Dissected(protobuf.fields(_message(value, form, schemas)), {}, number)
        except protobuf.UnreadableError as error:
            return Dissected({}, {}, number, stop=framing.begin(value), why=str(error))

    def read(self, found: Dissected, value: bytes, form: Input, schemas: Schemas) -> Dissected:
        try:
            used = protobuf.mapped_fields(_message(value, form, schemas), form)
        except protobuf.UnreadableError as error:
            return replace(found, problems=(str(error),))
        return replace(found, read=used, problems=tuple(json_record.wrong_types(used, form)))

    def text_problems(self, _texts: Mapping[str, str], _value: bytes, _form: Input, _schemas: Schemas) -> Iterator[str]:
        yield from ()

    def encode(self, value: bytes, record: Mapping[str, Any], form: Input, schemas: Schemas) -> bytes:
        message = _message(value, form, schemas)
        message.Clear()
        try:
            json_format.ParseDict(record, message)
        except json_format.ParseError as error:
            raise ValueError(f"does not fit schema {framings.of(form).id_of(value, form, schemas)}: {error}") from error
        return protobuf.head(value, framings.of(form)) + bytes(message.SerializeToString())

    def proposed(self, _found: Dissected, value: bytes, form: Input, schemas: Schemas) -> Mapping[str, Any]:
        return protobuf.plain(_message(value, form, schemas))

    def refusal(self, found: Dissected) -> str:
        return framings.refusal(found) or f"does not fit schema {found.schema}"

    def check(self, schema: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], None]) -> None:
        protobuf.check(schema)

    def describes(self, schema: Mapping[str, Any], path: Sequence[str], form: Input) -> bool:
        return protobuf.has_path(protobuf.files_of(schema), path, form.record_type)


def _message(value: bytes, form: Input, schemas: Schemas) -> Any:
    framing = framings.of(form)
    number = framing.id_of(value, form, schemas)
    return protobuf.parsed(value, protobuf.files_of(schemas[number or 0]), framing, form.record_type)

"""JSON behind a header that names its schema (framings.py). A schema only names the records that are read (decision 37)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column

from service.admission.formats import framings
from service.admission.formats.format import Dissected, Plan, Schemas
from service.admission.formats.plain_json import Json, json_fields
from service.settings import Input

_OF_OTHERS = {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"}


class JsonSchema(Json):
    """JSON behind a schema id."""

    suffix = "jsonschema"

    def framing(self, plan: Plan) -> Column:
        return framings.of(plan.form).framing(plan)

    def body(self, plan: Plan) -> Column:
        return framings.of(plan.form).body(plan)

    def body_of(self, value: bytes, form: Input) -> bytes:
        return value[framings.of(form).begin(value) :]

    def fields(self, value: bytes, form: Input, schemas: Schemas) -> Dissected:
        framing = framings.of(form)
        if stopped := framing.stopped(value, form, schemas):
            return stopped
        begin = framing.begin(value)
        found = json_fields(value[begin:])
        stop = None if found.stop is None else found.stop + begin
        return replace(found, schema=framing.id_of(value, form, schemas), stop=stop)

    def encode(self, value: bytes, record: Mapping[str, Any], form: Input, schemas: Schemas) -> bytes:
        return value[: framings.of(form).begin(value)] + super().encode(value, record, form, schemas)

    def refusal(self, found: Dissected) -> str:
        return framings.refusal(found) or super().refusal(found)

    def describes(self, schema: Any, path: Sequence[str], form: Input) -> bool:
        """Whether a JSON Schema may have a field; True where it refers to other schemas, which are not read."""
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if not path or not isinstance(properties, dict) or schema.keys() & _OF_OTHERS:
            return True
        return path[0] in properties and self.describes(properties[path[0]], path[1:], form)

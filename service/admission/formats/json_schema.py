"""JSON in Confluent's wire format. A schema only names the records that are read (decision 37)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column

from service.admission.formats import framings
from service.admission.formats.format import Dissected, Plan, Schemas
from service.admission.formats.framings import CONFLUENT, HEADER_BYTES
from service.admission.formats.plain_json import Json, json_fields
from service.settings import Input

_OF_OTHERS = {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"}


class JsonSchema(Json):
    """JSON behind a schema id."""

    suffix = "jsonschema"

    def framing(self, plan: Plan) -> Column:
        return CONFLUENT.framing(plan)

    def body(self) -> Column:
        return CONFLUENT.body()

    def body_of(self, value: bytes, _form: Input) -> bytes:
        return value[HEADER_BYTES:]

    def fields(self, value: bytes, form: Input, schemas: Schemas) -> Dissected:
        if stopped := CONFLUENT.stopped(value, form, schemas):
            return stopped
        found = json_fields(value[HEADER_BYTES:])
        stop = None if found.stop is None else found.stop + HEADER_BYTES
        return replace(found, schema=CONFLUENT.id_of(value, form, schemas), stop=stop)

    def encode(self, value: bytes, record: Mapping[str, Any], form: Input, schemas: Schemas) -> bytes:
        return value[:HEADER_BYTES] + super().encode(value, record, form, schemas)

    def refusal(self, found: Dissected) -> str:
        return framings.refusal(found) or super().refusal(found)

    def describes(self, schema: Any, path: Sequence[str]) -> bool:
        """Whether a JSON Schema may have a field; True where it refers to other schemas, which are not read."""
        if not path or not isinstance(schema, dict) or schema.keys() & _OF_OTHERS:
            return True
        properties = schema.get("properties")
        return properties is None or (path[0] in properties and self.describes(properties[path[0]], path[1:]))

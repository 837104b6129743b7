"""The formats of records: what the settings and the schemas need to have for each.

How a format is decoded is in a class of its own, by the same name: service/admission/formats.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True)
class Traits:
    """What a format has, apart from its decoder.

    `label` is its name in the log. `is_json` says whether fields are read by the rules of JSON, and `has_types` whether each
    field has one type. `kind` is the registry's word for its schemas, None for a format whose records have no schema id.
    `is_cut` says whether a record holds several readings, `has_arrays` whether it does where `input.array` says so.
    `compared_by` is what `tidemark schemas check` takes: sample records, schemas, or nothing, because the registry compares.
    """

    label: str
    is_json: bool = True
    has_types: bool = False
    kind: str | None = None
    is_cut: bool = False
    has_arrays: bool = False
    compared_by: Literal["samples", "schemas", "registry"] = "samples"


TRAITS: Mapping[str, Traits] = MappingProxyType(
    {
        "avro": Traits("Avro", is_json=False, has_types=True, kind="AVRO", compared_by="schemas"),
        "json": Traits("JSON", has_arrays=True),
        "json-schema": Traits("JSON Schema", kind="JSON", compared_by="registry"),
        "protobuf": Traits("Protobuf", has_types=True, kind="PROTOBUF", compared_by="registry"),
        "senml": Traits("SenML", is_cut=True),
        "senml-cbor": Traits("SenML in CBOR", is_cut=True),
        "ndjson": Traits("NDJSON", is_cut=True),
        "csv": Traits("CSV", is_cut=True),
        "line-protocol": Traits("line protocol", is_cut=True),
        "sparkplug-b": Traits("Sparkplug B", is_cut=True),
    }
)

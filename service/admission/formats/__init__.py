"""The formats by name. Each is one class in one module; service/settings/formats.py has what the settings need to have of it."""

from collections.abc import Mapping
from types import MappingProxyType

from service.admission.formats.avro import Avro
from service.admission.formats.csv_rows import Csv
from service.admission.formats.format import Format
from service.admission.formats.json_schema import JsonSchema
from service.admission.formats.line_protocol import LineProtocol
from service.admission.formats.messages import Protobuf
from service.admission.formats.ndjson import Ndjson
from service.admission.formats.plain_json import Json
from service.admission.formats.senml import Senml
from service.admission.formats.senml_cbor import SenmlCbor
from service.admission.formats.sparkplug_b import SparkplugB
from service.settings import Input

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "avro": Avro(),
        "json": Json(),
        "json-schema": JsonSchema(),
        "protobuf": Protobuf(),
        "senml": Senml(),
        "senml-cbor": SenmlCbor(),
        "ndjson": Ndjson(),
        "line-protocol": LineProtocol(),  # before CSV: lines with equally many commas look like rows
        "csv": Csv(),
        "sparkplug-b": SparkplugB(),
    }
)


def of(form: Input) -> Format:
    """Return the format of an input's records."""
    return FORMATS[form.format]

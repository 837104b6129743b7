"""What Kafka keeps of a record beside its value, and the sources that are read from it (service/settings/source.py)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.admission import json_record
from service.admission.formats import avro
from service.rejects.reject_log import Reject
from service.settings import Input, source


@dataclass(frozen=True, slots=True)
class Metadata:
    """Key, topic, partition, headers and time of a record."""

    key: bytes | None = None
    topic: str = ""
    partition: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    broker_ms: int = 0

    @classmethod
    def of(cls, reject: Reject) -> "Metadata":
        place = reject.place
        return cls(reject.key, place.topic, place.partition, reject.headers, reject.broker_ms)

    def at(self, word: str, form: Input | None = None) -> Any:  # noqa: PLR0911
        """Return the value of a source that is no field of the record, None without one. Bytes that are no UTF-8 stay bytes.

        `form` is the input of the record, whose key is JSON by default.
        """
        each = source.parse(word)
        match each.kind:
            case "key" if each.names and form is not None and form.key_schema is not None:
                return json_record.at(avro.key_of(self.key, form, self.headers), source.path_of(each))
            case "key" if each.names:
                return json_record.at(document(self.key), source.path_of(each))
            case "key":
                return _text(self.key)
            case "header":
                return _text(next((value for name, value in reversed(self.headers) if name == each.names[0]), None))
            case "topic":
                return each.of_topic(self.topic)
            case "partition":
                return str(self.partition)
            case "timestamp":
                return self.broker_ms
            case _:
                return each.text


def document(key: bytes | None) -> Any:
    """Return the JSON value at the begin of a key, as Spark's try_parse_json (4.1.1) does; None for a key that is no JSON.

    A name twice in an object is an error there, and what follows the value is not read.
    """
    try:
        text = (key or b"").decode()
        return json_record.first_value(text)
    except (ValueError, RecursionError):
        return None


def _text(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value

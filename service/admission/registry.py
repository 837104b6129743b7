"""Read a schema registry with Confluent's API and client: schemas by id, and the versions of a subject.

The client tries the addresses in order. It supports basic authentication, OAuth, and TLS with a client certificate. It follows no
redirect, so credentials reach no other address. Whoever may register a schema must not stop the service by it: answers,
references and schemas have limits, and a schema above one is unusable.
"""

import importlib
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from service.admission import avro_types, guids
from service.errors import RegistryError, SchemaError
from service.settings import Registry as RegistrySettings
from service.settings.formats import TRAITS

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

KINDS = {name: each.kind for name, each in TRAITS.items() if each.kind is not None}
"""The registry's words for the schemas of an input, by its format."""
JSON_SCHEMA, PROTOBUF = KINDS["json-schema"], KINDS["protobuf"]
_NAMES = {"AVRO": "Avro", JSON_SCHEMA: "JSON Schema", PROTOBUF: "Protobuf"}
_NOT_FOUND = 404
_NO_LOGIN = {401, 403}
MAX_BYTES = 4 << 20
"""Of an answer of the registry. Confluent's keeps a schema as a record of Kafka, of 1 MiB by default."""
MAX_REFERENCES = 500
"""Schemas that a schema refers to, directly or not."""
_DEEPEST = 20

Refuse = Callable[[int | None, SchemaError], object]
"""Takes the id, if it is known, of a schema that cannot be used, and the reason."""


class _TooLargeError(Exception):
    """An answer of more than MAX_BYTES, or one that is compressed although it was not to be."""


class Client:
    """One registry, at one or several addresses. `kind` is the type of the schemas that are read, in the registry's words."""

    def __init__(self, settings: RegistrySettings, kind: str = "AVRO", *, has_guids: bool = False) -> None:
        """With `has_guids` a version is under the number of its GUID, too (formats/framings.py)."""
        self._has_guids = has_guids
        self._settings = settings
        self._kind = kind
        self._client: SchemaRegistryClient | None = None

    def __str__(self) -> str:
        return self._settings.url

    def close(self) -> None:
        """Drop the connections; the next request makes new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def schema(self, number: int) -> dict[str, Any] | None:
        """Return the schema with this id, an Avro record with its references inlined; None when the registry has no such id.

        Raises RegistryError when the registry does not answer, SchemaError when the schema is of another kind.
        """
        what = f"schema {number}"
        schema = self._ask(what, "get_schema", number, **self._form)
        return None if schema is None else self._read(schema, what)

    def kind_of(self, number: int) -> str | None:
        """Return the type of the schema with this id, one of KINDS' values or another word of the registry; None without one."""
        schema = self._ask(f"schema {number}", "get_schema", number)
        return None if schema is None else _kind(schema)

    def subject(self, name: str, refuse: Refuse | None = None) -> Mapping[int, dict[str, Any]]:
        """Return all versions of a subject that are of the kind, by schema id, and after it by the number of its GUID.

        The result is empty when there is no such subject.

        With `refuse`, a version that cannot be used is given to it, and the others are returned.
        """
        schemas: dict[int, dict[str, Any]] = {}
        for version in self._ask(name, "get_versions", name) or ():
            what, number = f"{name}, version {version}", None
            try:
                each = self._ask(what, "get_version", name, version, **self._form)
                if each is not None and _kind(each.schema) == self._kind:
                    number = int(each.schema_id)
                    schemas[number] = self._read(each.schema, what)
                    if self._has_guids and each.guid is not None:
                        schemas[guids.number_of(each.guid)] = schemas[number]
            except RegistryError:
                raise
            except SchemaError as error:
                if refuse is None:
                    raise
                refuse(number, error)
        return schemas

    def subjects_of(self, number: int) -> list[str]:
        """Return the subjects that have a version with this schema id. Raises RegistryError."""
        return sorted(
            map(str, self._ask(f"the subjects of schema {number}", "get_subjects_by_schema_id", number) or ())
        )

    def _read(self, schema: "Schema", what: str) -> dict[str, Any]:
        if _kind(schema) != self._kind:
            raise SchemaError(f"{self}: {what} is {_NAMES.get(_kind(schema), _kind(schema))}, not {_NAMES[self._kind]}")
        try:
            if self._kind == PROTOBUF:
                parts = self._references(schema)  # a file comes after those that it imports
                return {"files": [*map(list, parts.items()), ["schema.proto", schema.schema_str or ""]]}
            schema_document = parsed(schema.schema_str or "")
            if self._kind == JSON_SCHEMA:
                return schema_document if isinstance(schema_document, dict) else {}  # true allows every value
            if parts := self._references(schema):
                schema_document = avro_types.inline(schema_document, parts)
                avro_types.require_shallow(schema_document)
        except RegistryError:
            raise
        except (AttributeError, KeyError, ValueError, TypeError, SchemaError, RecursionError) as error:
            text = str(error) if isinstance(error, SchemaError) else repr(error)
            raise SchemaError(f"{self}: {what} cannot be read: {text}") from error
        return record(schema_document, f"{self}: {what}")

    def _references(self, schema: "Schema") -> dict[str, Any]:
        """Return name and content of all schemas that a schema refers to, directly or not; each is read once."""
        parts: dict[str, Any] = {}
        names: set[str] = set()
        size = 0

        def add(schema: "Schema", depth: int) -> None:
            nonlocal size
            if depth > _DEEPEST:
                raise SchemaError(f"references go {_DEEPEST} deep")
            for each in schema.references or ():
                if str(each.name) in names:
                    continue
                names.add(str(each.name))
                what = f"{each.subject}, version {each.version}"
                version = self._ask(what, "get_version", each.subject, each.version, **self._form)
                if version is None:
                    raise SchemaError(f"it refers to {what}, which does not exist")
                text = version.schema.schema_str or ""
                size += len(text)
                if len(names) > MAX_REFERENCES or size > MAX_BYTES:
                    raise SchemaError(f"it refers to more than {MAX_REFERENCES} schemas, or {MAX_BYTES} bytes of them")
                add(version.schema, depth + 1)
                parts[str(each.name)] = text if self._kind == PROTOBUF else parsed(text)

        add(schema, 0)
        return parts

    @property
    def _form(self) -> dict[str, str]:
        """Options of requests: a registry gives Protobuf as a descriptor, so that nothing here has to read .proto files."""
        return {"fmt": "serialized"} if self._kind == PROTOBUF else {}

    def _ask(self, what: str, method: str, *arguments: Any, **options: Any) -> Any:
        """Call the client; return None for "not found", raise RegistryError when no address answers."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415 - half a second of imports

        try:
            if self._client is not None:
                try:
                    return getattr(self._client, method)(*arguments, **options)
                except SchemaRegistryError as error:
                    if error.http_status_code not in _NO_LOGIN:
                        raise
                    self.close()  # the password may have been replaced since the client was made
            self._client = connect(self._settings)
            return getattr(self._client, method)(*arguments, **options)
        except _TooLargeError as error:
            self.close()  # the rest of the answer is still on its way
            raise SchemaError(f"{self}: the answer for {what} {error}") from error
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                return None
            problem: Exception = error
        except Exception as error:  # httpx's, authlib's, and those of files
            problem = error
        self.close()  # so that the next request reads the password and the certificates again
        msg = f"The schema registry {self} does not answer for {what}: {problem or type(problem).__name__}"
        raise RegistryError(msg, remedy="Check [registry] url, user, password and certificates, and the registry")


def connect(settings: RegistrySettings) -> "SchemaRegistryClient":
    """Return Confluent's client of a registry; close it after use."""
    from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415

    system = ssl.get_default_verify_paths()
    options: dict[str, Any] = {"url": settings.url, "timeout": settings.timeout_ms / 1000, "max.retries": 0}
    files = {
        "ssl.ca.location": settings.ca_file or system.cafile or system.capath,
        "ssl.certificate.location": settings.certificate,
        "ssl.key.location": settings.key,
    }
    options |= {name: str(path) for name, path in files.items() if path is not None}
    if settings.user is not None:
        secret = settings.secret() or ""
        if "bearer.auth.credentials.source" in settings.options:
            options |= {"bearer.auth.client.id": settings.user, "bearer.auth.client.secret": secret}
        else:
            options["basic.auth.user.info"] = f"{settings.user}:{secret}"
    client = SchemaRegistryClient({**options, **settings.options})
    session = client._rest_client.session  # has no option for the size of an answer (confluent-kafka 2.16.0)
    session.headers["Accept-Encoding"] = "identity"
    session.event_hooks = {"response": [_limited(session, settings.timeout_ms / 1000)]}
    return client


def _limited(session: Any, timeout_s: float) -> Callable[[Any], None]:
    """Return a hook that limits the bytes of an answer, and the time for all of it: httpx limits the time of each piece.

    Any: the session is of httpx2 where that is installed, else of httpx.
    """
    httpx: Any = importlib.import_module(type(session).__module__.partition(".")[0])

    class Limited(httpx.SyncByteStream):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            self._stream, self._end_s = stream, time.monotonic() + timeout_s

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for piece in self._stream:
                size += len(piece)
                if size > MAX_BYTES:
                    raise _TooLargeError(f"has more than {MAX_BYTES} bytes")
                if time.monotonic() > self._end_s:
                    raise httpx.ReadTimeout(f"the answer takes longer than {timeout_s} s")
                yield piece

        def close(self) -> None:
            self._stream.close()

    def limit(response: Any) -> None:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise _TooLargeError("is compressed")
        response.stream = Limited(response.stream)

    return limit


def parsed(text: str, where: str = "") -> Any:
    """Return the document of a schema's JSON. Raises ValueError, SchemaError for one that is nested too deep."""
    try:
        document = json.loads(text)
        avro_types.require_shallow(document)
    except (RecursionError, SchemaError) as error:
        raise SchemaError(f"{where}{avro_types.TOO_NESTED}") from error
    return document


def _kind(schema: "Schema") -> str:
    return str(schema.schema_type or "AVRO")


def record(schema: Any, where: str) -> dict[str, Any]:
    """Return `schema` if it is an Avro record, a union of records as one (avro_types.wrapped); raise SchemaError if not."""
    if isinstance(schema, list) and any(isinstance(each, dict) for each in schema):
        for each in schema:
            if each != "null":
                record(each, where)
        return avro_types.wrapped(schema)
    if not isinstance(schema, dict) or schema.get("type") != "record" or not isinstance(schema.get("fields"), list):
        raise SchemaError(f"{where}: must be an Avro record, or a union of records")
    return schema

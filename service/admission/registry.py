"""Read a schema registry with Confluent's API and client: schemas by id, and the versions of a subject.

The client tries the addresses in order. It supports basic authentication, OAuth, and TLS with a client certificate. It follows no
redirect, so credentials reach no other address.
"""

import json
import ssl
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from service.admission import avro_types
from service.errors import RegistryError, SchemaError
from service.settings import Registry as RegistrySettings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

KINDS = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF"}
"""The registry's words for the schemas of an input, by its format."""
JSON_SCHEMA, PROTOBUF = KINDS["json-schema"], KINDS["protobuf"]
_NAMES = {"AVRO": "Avro", JSON_SCHEMA: "JSON Schema", PROTOBUF: "Protobuf"}
_NOT_FOUND = 404
_DEEPEST = 20


class Client:
    """One registry, at one or several addresses. `kind` is the type of the schemas that are read, in the registry's words."""

    def __init__(self, settings: RegistrySettings, kind: str = "AVRO") -> None:
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

    def subject(self, name: str) -> Mapping[int, dict[str, Any]]:
        """Return all versions of a subject that are of the kind, by schema id; an empty dict when there is no such subject."""
        schemas: dict[int, dict[str, Any]] = {}
        for version in self._ask(name, "get_versions", name) or ():
            what = f"{name}, version {version}"
            each = self._ask(what, "get_version", name, version, **self._form)
            if each is not None and _kind(each.schema) == self._kind:
                schemas[int(each.schema_id)] = self._read(each.schema, what)
        return schemas

    def subjects_of(self, number: int) -> list[str]:
        """Return the subjects that have a version with this schema id. Raises RegistryError."""
        return sorted(
            map(str, self._ask(f"the subjects of schema {number}", "get_subjects_by_schema_id", number) or ())
        )

    def _read(self, schema: "Schema", what: str) -> dict[str, Any]:
        if _kind(schema) != self._kind:
            msg = f"{self}: {what} is {_NAMES.get(_kind(schema), _kind(schema))}, not {_NAMES[self._kind]}"
            raise SchemaError(msg)
        try:
            if self._kind == PROTOBUF:
                parts = dict(self._references(schema, 0))  # a file comes after those that it imports
                return {"files": [*map(list, parts.items()), ["schema.proto", schema.schema_str or ""]]}
            schema_document = json.loads(schema.schema_str or "")
            if self._kind == JSON_SCHEMA:
                return schema_document if isinstance(schema_document, dict) else {}  # true allows every value
            if parts := dict(self._references(schema, 0)):
                schema_document = avro_types.inline(schema_document, parts)
        except (KeyError, ValueError, TypeError) as error:
            msg = f"{self}: {what} cannot be read: {error!r}"
            raise SchemaError(msg) from error
        return record(schema_document, f"{self}: {what}")

    def _references(self, schema: "Schema", depth: int) -> Iterator[tuple[str, Any]]:
        """Yield name and content of all schemas that a schema refers to, directly or not."""
        if depth > _DEEPEST:
            msg = f"references go {_DEEPEST} deep"
            raise ValueError(msg)
        for each in schema.references or ():
            what = f"{each.subject}, version {each.version}"
            version = self._ask(what, "get_version", each.subject, each.version, **self._form)
            if version is None:
                msg = f"it refers to {what}, which does not exist"
                raise ValueError(msg)
            yield from self._references(version.schema, depth + 1)
            text = version.schema.schema_str or ""
            yield str(each.name), text if self._kind == PROTOBUF else json.loads(text)

    @property
    def _form(self) -> dict[str, str]:
        """Options of requests: a registry gives Protobuf as a descriptor, so that nothing here has to read .proto files."""
        return {"fmt": "serialized"} if self._kind == PROTOBUF else {}

    def _ask(self, what: str, method: str, *arguments: Any, **options: Any) -> Any:
        """Call the client; return None for "not found", raise RegistryError when no address answers."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415 - half a second of imports

        try:
            if self._client is None:
                self._client = connect(self._settings)
            return getattr(self._client, method)(*arguments, **options)
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
    return SchemaRegistryClient({**options, **settings.options})


def _kind(schema: "Schema") -> str:
    return str(schema.schema_type or "AVRO")


def record(schema: Any, where: str) -> dict[str, Any]:
    """Return `schema` if it is an Avro record, raise SchemaError if not."""
    if not isinstance(schema, dict) or schema.get("type") != "record" or not isinstance(schema.get("fields"), list):
        msg = f"{where}: must be an Avro record"
        raise SchemaError(msg)
    return schema

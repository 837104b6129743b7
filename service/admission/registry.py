"""A schema registry with Confluent's API, read through Confluent's own client: schemas by id, and the versions of a subject.

The client tries the addresses in order, logs in (basic, OAuth) and speaks TLS, also with a certificate of its own. It
follows no redirect, so that credentials reach no other address. service/admission/schema_store.py keeps copies of its schemas.
"""

import json
import ssl
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from service.errors import RegistryError, SchemaError
from service.settings import Registry as RegistrySettings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

_NOT_FOUND = 404
_DEEPEST = 20
_COMPLEX = frozenset({"record", "error", "enum", "fixed", "array", "map"})


class Client:
    """One registry, at one or several addresses."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._client: SchemaRegistryClient | None = None

    def __str__(self) -> str:
        return self._settings.url

    def close(self) -> None:
        """Drop the connections; the next request makes new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def schema(self, number: int) -> dict[str, Any] | None:
        """The Avro record with this id, with all it refers to; None when the registry has no such id.

        Raises RegistryError when the registry does not answer, SchemaError when what it has is no Avro record.
        """
        what = f"schema {number}"
        found = self._ask(what, "get_schema", number)
        return None if found is None else self._avro(found, what)

    def subject(self, name: str) -> Mapping[int, dict[str, Any]]:
        """Every version of a subject that is an Avro record, by schema id; none of a subject that there is not."""
        found: dict[int, dict[str, Any]] = {}
        for version in self._ask(name, "get_versions", name) or ():
            what = f"{name}, version {version}"
            each = self._ask(what, "get_version", name, version)
            if each is not None and _kind(each.schema) == "AVRO":
                found[int(each.schema_id)] = self._avro(each.schema, what)
        return found

    def _avro(self, found: "Schema", what: str) -> dict[str, Any]:
        if _kind(found) != "AVRO":
            msg = f"{self}: {what} is {found.schema_type}, not Avro"
            raise SchemaError(msg)
        try:
            schema = json.loads(found.schema_str or "")
            parts = dict(self._references(found, 0))
            whole = inline(schema, parts) if parts else schema
        except (KeyError, ValueError, TypeError) as error:
            msg = f"{self}: {what} cannot be read: {error!r}"
            raise SchemaError(msg) from error
        return record(whole, f"{self}: {what}")

    def _references(self, schema: "Schema", depth: int) -> Iterator[tuple[str, Any]]:
        """The named schemas that a schema refers to, and those that they refer to."""
        if depth > _DEEPEST:
            msg = f"references go {_DEEPEST} deep"
            raise ValueError(msg)
        for each in schema.references or ():
            what = f"{each.subject}, version {each.version}"
            found = self._ask(what, "get_version", each.subject, each.version)
            if found is None:
                msg = f"{what}, which it refers to, is not there"
                raise ValueError(msg)
            yield from self._references(found.schema, depth + 1)
            yield str(each.name), json.loads(found.schema.schema_str or "")

    def _ask(self, what: str, method: str, *arguments: Any) -> Any:
        """What the client answers, None for "not found"; RegistryError when no address gives an answer."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415 - half a second of imports

        try:
            if self._client is None:
                self._client = _connect(self._settings)
            return getattr(self._client, method)(*arguments)
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                return None
            problem: Exception = error
        except Exception as error:  # httpx's, authlib's, and those of files
            problem = error
        self.close()  # the next request reads the password and the certificates anew
        msg = f"The schema registry {self} does not answer for {what}: {problem or type(problem).__name__}"
        raise RegistryError(msg, remedy="Check [registry] url, user, password and certificates, and the registry")


def _connect(settings: RegistrySettings) -> "SchemaRegistryClient":
    from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415

    system = ssl.get_default_verify_paths()
    options: dict[str, Any] = {
        "url": settings.url,
        "timeout": settings.timeout_ms / 1000,
        "max.retries": 0,
        "ssl.ca.location": settings.ca_file or system.cafile or system.capath,
        "ssl.certificate.location": settings.certificate,
        "ssl.key.location": settings.key,
    }
    if settings.user is not None:
        names = ("bearer.auth.client.id", "bearer.auth.client.secret")
        if "bearer.auth.credentials.source" in settings.options:
            options |= dict(zip(names, (settings.user, settings.secret() or ""), strict=True))
        else:
            options["basic.auth.user.info"] = f"{settings.user}:{settings.secret() or ''}"
    options = {
        name: str(value) if "location" in name else value for name, value in options.items() if value is not None
    }
    return SchemaRegistryClient({**options, **settings.options})


def _kind(schema: "Schema") -> str:
    return str(schema.schema_type or "AVRO")


def record(schema: Any, where: str) -> dict[str, Any]:
    """`schema` when it is an Avro record; SchemaError otherwise."""
    if not isinstance(schema, dict) or schema.get("type") != "record" or not isinstance(schema.get("fields"), list):
        msg = f"{where}: must be an Avro record"
        raise SchemaError(msg)
    return schema


def inline(schema: Any, parts: Mapping[str, Any]) -> Any:
    """`schema` with the named schemas that it refers to in it: in full at the first place, by name at the others."""
    defined: set[str] = set()

    def full(name: str, namespace: str) -> str:
        return name if "." in name or not namespace else f"{namespace}.{name}"

    def walk(node: Any, namespace: str) -> Any:
        if isinstance(node, list):
            return [walk(each, namespace) for each in node]
        if isinstance(node, str):
            name = next((each for each in (full(node, namespace), node) if each in parts), None)
            return node if name is None or name in defined else walk(parts[name], "")
        if not isinstance(node, dict):
            return node
        if "name" in node and node.get("type") in {"record", "error", "enum", "fixed"}:
            name = full(node["name"], node.get("namespace", namespace))
            namespace = name.rpartition(".")[0]
            defined.add(name)
        changed = dict(node)
        if isinstance(node.get("fields"), list):
            changed["fields"] = [{**each, "type": walk(each["type"], namespace)} for each in node["fields"]]
        for key in ("items", "values", "type"):
            if key in node and not (isinstance(node[key], str) and node[key] in _COMPLEX):
                changed[key] = walk(node[key], namespace)
        return changed

    return walk(schema, "")

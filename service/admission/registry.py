"""A schema registry, asked over HTTP: what Confluent's API says of schemas by id and of the versions of a subject.

Only reading: GET /schemas/ids/{id}, /subjects/{subject}/versions and /subjects/{subject}/versions/{version}. Of several
addresses the first that answers is taken. Nothing is kept here: service/admission/schemas.py does that.
"""

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from service.errors import RegistryError, SchemaError
from service.settings import Registry as RegistrySettings

_NOT_FOUND = 404
_TYPE = "application/vnd.schemaregistry.v1+json"
_LARGEST = 16 << 20
_DEEPEST = 20
_COMPLEX = frozenset({"record", "error", "enum", "fixed", "array", "map"})


class Client:
    """One registry, at one or several addresses."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._addresses = [each.strip().rstrip("/") for each in settings.url.split(",")]

    def __str__(self) -> str:
        return self._settings.url

    def schema(self, number: int) -> dict[str, Any] | None:
        """The Avro record with this id, with all it refers to; None when the registry has no such id.

        Raises RegistryError when the registry does not answer, SchemaError when what it has is no Avro record.
        """
        found = self._get(f"/schemas/ids/{number}")
        return None if found is None else self._avro(found, f"schema {number}")

    def subject(self, name: str) -> Mapping[int, dict[str, Any]]:
        """Every version of a subject that is an Avro record, by schema id; none of a subject that there is not."""
        path = f"/subjects/{quote(name, safe='')}/versions"
        found: dict[int, dict[str, Any]] = {}
        for version in self._get(path) or ():
            document = self._get(f"{path}/{version}")
            if document is not None and document.get("schemaType", "AVRO") == "AVRO":
                found[int(document["id"])] = self._avro(document, f"{name}, version {version}")
        return found

    def _avro(self, document: Mapping[str, Any], what: str) -> dict[str, Any]:
        kind = document.get("schemaType", "AVRO")
        if kind != "AVRO":
            msg = f"{self}: {what} is {kind}, not Avro"
            raise SchemaError(msg)
        try:
            schema = json.loads(document["schema"])
            parts = dict(self._references(document, 0))
            whole = inline(schema, parts) if parts else schema
        except (KeyError, ValueError, TypeError) as error:
            msg = f"{self}: {what} cannot be read: {error!r}"
            raise SchemaError(msg) from error
        return record(whole, f"{self}: {what}")

    def _references(self, document: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
        """The named schemas that a schema refers to, and those that they refer to."""
        if depth > _DEEPEST:
            msg = f"references go {_DEEPEST} deep"
            raise ValueError(msg)
        for each in document.get("references") or ():
            found = self._get(f"/subjects/{quote(each['subject'], safe='')}/versions/{each['version']}")
            if found is None:
                msg = f"{each['subject']}, version {each['version']}, which it refers to, is not there"
                raise ValueError(msg)
            yield from self._references(found, depth + 1)
            yield each["name"], json.loads(found["schema"])

    def _get(self, path: str) -> Any:
        """The answer's document, None for "not found"; RegistryError when no address gives one."""
        problems = []
        for address in self._addresses:
            request = urllib.request.Request(address + path, headers=self._headers())  # noqa: S310 - checked by Registry
            try:
                with urllib.request.urlopen(  # noqa: S310
                    request, timeout=self._settings.timeout_ms / 1000, context=self._tls(address)
                ) as answer:
                    return json.loads(answer.read(_LARGEST))
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == _NOT_FOUND:
                        return None
                    problems.append(f"{address}{path}: {error.code} {error.reason}")
            except (OSError, http.client.HTTPException, ValueError) as error:
                problems.append(f"{address}{path}: {getattr(error, 'reason', error) or type(error).__name__}")
        what = f"The schema registry does not answer: {'; '.join(problems)}"
        raise RegistryError(what, remedy="Check [registry] url, user and password, and the registry")

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": f"{_TYPE}, application/json"}
        if self._settings.user is not None:
            try:
                pair = f"{self._settings.user}:{self._settings.secret() or ''}"
            except OSError as error:
                what = f"{self._settings.password_file}: the registry's password cannot be read ({error.strerror})"
                raise RegistryError(what, remedy="Name the file in [registry] password_file") from error
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return headers

    def _tls(self, address: str) -> ssl.SSLContext | None:
        if not address.startswith("https:"):
            return None
        return ssl.create_default_context(cafile=self._settings.ca_file and str(self._settings.ca_file))


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

"""A schema registry for runs and tests: what Confluent's API promises of registering and reading, in a thread of this process.

    with Registry() as registry:
        number = registry.register("readings-value", schema)

Ids are given in order, one for each different schema; nothing is judged for compatibility. Protobuf is registered as the
descriptor in base64, and answered so to requests with format=serialized. tests/integration/test_registry.py holds the registry
against Confluent's own client.
"""

import base64
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote, urlsplit
from uuid import NAMESPACE_OID, uuid5

from load.servers.server_process import HOST, ServerProcess, free_port
from load.servers.web import answer
from load.servers.web_server import Handler, WebServer
from service.spark.java import java
from service.spark.places import ROOT

_TYPE = "application/vnd.schemaregistry.v1+json"


class _RefusedError(Exception):
    """An answer that is an error: HTTP status, Confluent's code, text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


@dataclass(slots=True)
class Registry:
    """Subjects, versions and ids. `user` and `password` are asked for when given. `requests` counts them by path."""

    port: int = field(default_factory=free_port)
    user: str = ""
    password: str = ""
    first_id: int = 1
    requests: dict[str, int] = field(default_factory=dict)
    _schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    _subjects: dict[str, list[int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _server: WebServer | None = None

    @property
    def url(self) -> str:
        """The value of schema.registry.url for clients."""
        return f"http://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, with all that is registered already."""
        registry = self

        class Asked(Handler):
            def answer(self) -> None:
                registry._answer(self)

        self._server = WebServer(self.port, Asked)
        self._server.start()

    def stop(self) -> None:
        """Answer no more; what is registered stays."""
        if self._server is not None:
            self._server.close()

    def register(
        self, subject: str, schema: Any, references: Sequence[Mapping[str, Any]] = (), kind: str = "AVRO"
    ) -> int:
        """The id of a schema, which becomes the subject's newest version; the same schema has the same id everywhere."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        document: dict[str, Any] = {"schema": text}
        if kind != "AVRO":
            document["schemaType"] = kind
        if references:
            document["references"] = [dict(each) for each in references]
        with self._lock:
            new = self.first_id + len(self._schemas)
            number = next((known for known, each in self._schemas.items() if each == document), new)
            self._schemas[number] = document
            versions = self._subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
        return number

    def _answer(self, request: Handler) -> None:
        body = request.body()
        path, query = urlsplit(request.path).path, urlsplit(request.path).query
        self.requests[path] = self.requests.get(path, 0) + 1
        try:
            self._authenticate(request.headers.get("Authorization", ""))
            status, document = 200, self._route(request.command, [unquote(each) for each in path.split("/")[1:]], body)
            if (
                isinstance(document, dict)
                and document.get("schemaType") == "PROTOBUF"
                and "format=serialized" not in query
            ):
                document = {**document, "schema": "// this registry has no text of it"}
        except _RefusedError as refused:
            status, document = refused.code // 100, {"error_code": refused.code, "message": refused.text}
        request.send_json(status, document, _TYPE)

    def _authenticate(self, given: str) -> None:
        if self.user:
            right = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            if given != f"Basic {right}":
                raise _RefusedError(40101, "Unauthorized")

    def _route(self, method: str, path: Sequence[str], body: bytes) -> Any:  # noqa: PLR0911
        match (method, *path):
            case "GET", "subjects":
                return sorted(self._subjects)
            case "GET", "schemas", "ids", number:
                return dict(self._schema(int(number)))
            case "GET", "schemas", "ids", number, "subjects":
                return self._subjects_of(int(number))
            case "GET", "subjects", subject, "versions":
                return list(range(1, len(self._versions(subject)) + 1))
            case "GET", "subjects", subject, "versions", version:
                return self._version(subject, version)
            case "POST", "subjects", subject, "versions":
                document = json.loads(body)
                references, kind = document.get("references") or (), str(document.get("schemaType") or "AVRO")
                return {"id": self.register(subject, document["schema"], references, kind)}
            case "POST", "subjects", subject:
                text = json.loads(json.loads(body)["schema"])
                for at, each in enumerate(self._versions(subject), start=1):
                    if json.loads(self._schemas[each]["schema"]) == text:
                        return self._version(subject, str(at))
                raise _RefusedError(40403, "Schema not found")
        raise _RefusedError(40400, "HTTP 404 Not Found")

    def _schema(self, number: int) -> Mapping[str, Any]:
        if number not in self._schemas:
            raise _RefusedError(40403, f"Schema {number} not found")
        return self._schemas[number]

    def _subjects_of(self, number: int) -> Sequence[str]:
        self._schema(number)
        return sorted(subject for subject, numbers in self._subjects.items() if number in numbers)

    def _versions(self, subject: str) -> Sequence[int]:
        if subject not in self._subjects:
            raise _RefusedError(40401, f"Subject '{subject}' not found.")
        return self._subjects[subject]

    def _version(self, subject: str, version: str) -> Mapping[str, Any]:
        versions = self._versions(subject)
        at = len(versions) if version == "latest" else int(version)
        if not 1 <= at <= len(versions):
            raise _RefusedError(40402, f"Version {version} not found.")
        number = versions[at - 1]
        guid = str(uuid5(NAMESPACE_OID, self._schemas[number]["schema"]))
        return {"subject": subject, "version": at, "id": number, "guid": guid, **self._schemas[number]}


class Apicurio(ServerProcess):
    """A real one, in memory: Apicurio's application in .build/registry, where `make registry` puts it."""

    name = "apicurio"
    _FOLDER = ROOT / ".build" / "registry"

    @property
    def url(self) -> str:
        """The value of schema.registry.url for clients."""
        return f"http://{self.address}/apis/ccompat/v7"

    @classmethod
    def is_there(cls) -> bool:
        """Whether it can be started."""
        return any(cls._FOLDER.glob("*-runner.jar"))

    def _command(self) -> Sequence[str]:
        (jar,) = self._FOLDER.glob("*-runner.jar")
        options = ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dquarkus.http.port={self.port}"]
        return [java(), *options, f"-Dquarkus.http.host={HOST}", "-jar", str(jar)]

    def _answers(self) -> bool:
        return answer(f"{self.url}/subjects", 1.0)[0] == 200

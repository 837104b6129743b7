"""A collector of traces for tests: takes OTLP over HTTP and parses the Protobuf."""

import gzip
import threading
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from load.servers.server_process import HOST, Started, free_port
from load.servers.web_server import Handler, WebServer


@dataclass(frozen=True)
class Span:
    """A span as the collector got it; `status` is 0, or 2 for an error, whose description is `message`."""

    name: str
    trace: bytes
    id: bytes
    parent: bytes
    begin_ns: int
    end_ns: int
    attributes: dict[str, int | str]
    status: int
    message: str
    events: int


@dataclass
class Collector(Started):
    """Keeps the spans of all requests, and the bytes of them. With `hangs` it takes requests and does not answer."""

    hangs: bool = False
    port: int = field(default_factory=free_port)
    spans: list[Span] = field(default_factory=list)
    services: set[str] = field(default_factory=set)
    bodies: list[bytes] = field(default_factory=list)
    _closing: threading.Event = field(default_factory=threading.Event)
    _server: WebServer | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}/v1/traces"

    def named(self, name: str) -> list[Span]:
        return [span for span in tuple(self.spans) if span.name == name]

    def children(self, parent: Span) -> list[Span]:
        return [span for span in tuple(self.spans) if span.parent == parent.id and span.trace == parent.trace]

    def start(self) -> None:
        collector = self

        class Traced(Handler):
            def answer(self) -> None:
                if collector.hangs:
                    collector._closing.wait(60)
                    return
                body = self.body()
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                assert self.headers["Content-Type"] == "application/x-protobuf"
                collector._take(body)
                self.accept()

        self._server = WebServer(self.port, Traced)
        self._server.start()

    def close(self) -> None:
        self._closing.set()
        if self._server is not None:
            self._server.close()

    def _take(self, body: bytes) -> None:
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.services.add(names["service.name"])
            for scope in resource.scope_spans:
                for each in scope.spans:
                    attributes: dict[str, int | str] = {
                        item.key: item.value.int_value if item.value.HasField("int_value") else item.value.string_value
                        for item in each.attributes
                    }
                    self.spans.append(
                        Span(
                            each.name,
                            each.trace_id,
                            each.span_id,
                            each.parent_span_id,
                            each.start_time_unix_nano,
                            each.end_time_unix_nano,
                            attributes,
                            each.status.code,
                            each.status.message,
                            len(each.events),
                        )
                    )

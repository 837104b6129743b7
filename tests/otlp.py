"""A collector of traces for tests: takes OTLP over HTTP and parses the Protobuf."""

import gzip
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from load.servers.server_process import HOST, Started, free_port


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
    _server: ThreadingHTTPServer | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}/v1/traces"

    def named(self, name: str) -> list[Span]:
        return [span for span in tuple(self.spans) if span.name == name]

    def children(self, parent: Span) -> list[Span]:
        return [span for span in tuple(self.spans) if span.parent == parent.id and span.trace == parent.trace]

    def start(self) -> None:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                if collector.hangs:
                    collector._closing.wait(60)
                    return
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                assert self.headers["Content-Type"] == "application/x-protobuf"
                collector._take(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Write no log."""

        self._server = ThreadingHTTPServer((HOST, self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

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

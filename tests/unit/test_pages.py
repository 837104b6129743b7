"""How commands ask a running service: past proxies, over IPv6, and what they say of a port that another program holds."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from load.servers.web import answer
from load.servers.web_server import Handler, answering
from service.cli import main
from service.commands import check, query, support, watch
from service.errors import SetupError
from service.monitoring import attention, pages, status
from service.monitoring.pages import NoServiceError
from service.settings import Settings
from tests.served import Served, served
from tests.stream.records import make_settings
from tests.unit.test_cli import GOOD


@contextmanager
def foreign(answer: bytes) -> Iterator[int]:
    """A program that is no Tidemark service: it answers every connection with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    line, _ = listening.accept()
                except OSError:
                    return
                with line:
                    line.recv(65_536)
                    line.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def at(folder: Path, port: int, address: str = "127.0.0.1") -> Settings:
    return make_settings(folder, metrics={"port": port, "address": address})


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A proxy for everything, which refuses each request; the paths that it was asked for."""
    asked: list[str] = []

    def refuse(request: Handler) -> None:
        asked.append(request.path)
        request.send_error(403)

    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with answering(refuse) as url:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, url)
        yield asked


def test_a_service_is_asked_past_a_proxy(proxied: list[str], tmp_path: Path) -> None:
    with served() as service:
        settings = at(tmp_path, service.port)
        assert status.ask(settings.metrics) is not None
        assert list(query.listed(settings.metrics)) == ["tidemark"]
        assert attention.asked(settings.metrics) is not None
        (line,) = check._metrics_port(settings)
        assert line.detail.endswith("is in use by the running service")
        page = dict(support._parts(settings, []))["status.json"]
        assert '"state": "waiting"' in page()
        assert answer(f"http://127.0.0.1:{service.port}/healthz")[0] == 200, "the demo and the tests ask so"
    assert proxied == []


ANSWERS = {
    "Redis": b"-ERR unknown command 'GET'\r\n",
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "another program's page": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "no such page": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "no JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{{{ }}}",
    "no text": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe",
}


@pytest.mark.parametrize("said", ANSWERS.values(), ids=ANSWERS)
def test_another_program_is_named_as_one(said: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "tidemark.toml"
    with foreign(said) as port:
        text = f"127.0.0.1:{port} does not answer as a Tidemark service does. If another program holds the port"
        config.write_text(GOOD + f"\n[metrics]\nport = {port}\n")
        assert main(["status", "--config", str(config)]) == 1
        assert text in capsys.readouterr().err
        assert main(["query", "list", "--config", str(config)]) == SetupError.status
        assert text in capsys.readouterr().err
        settings = at(tmp_path, port)
        shown = watch.Watch(settings.metrics, config)
        shown.look()
        assert text in next(shown.lines())
        assert status.ask(settings.metrics) is None
        with pytest.raises(NoServiceError, match="does not answer as a Tidemark service does"):
            attention.asked(settings.metrics)
        with pytest.raises(SetupError, match="cannot be listened on"):
            next(check._metrics_port(settings))


def test_a_program_that_closes_the_connection_is_no_service(tmp_path: Path) -> None:
    with foreign(b"") as port, pytest.raises(NoServiceError, match=f"no service answers at 127.0.0.1:{port}"):
        status.asked(at(tmp_path, port).metrics)


def test_a_name_that_no_pipeline_has_is_answered_with_those_that_there_are(tmp_path: Path) -> None:
    text = r"answers: There is no such pipeline\. There are: plant, fleet"
    with served("plant", "fleet") as service, pytest.raises(NoServiceError, match=text):
        status.asked(at(tmp_path, service.port).metrics, "ship")


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="the machine has no IPv6")
@pytest.mark.parametrize("address", ["::1", "::"])
def test_a_service_listens_at_an_ipv6_address_and_is_asked_there(address: str, tmp_path: Path) -> None:
    (line,) = check._metrics_port(at(tmp_path, 0, address))
    assert line.status == "ok"
    with served(address=address) as service:
        port = service.port
        settings = at(tmp_path, port, address)
        assert pages.address(settings.metrics) == f"{'127.0.0.1' if address == '::' else '[::1]'}:{port}"
        assert status.ask(settings.metrics) is not None
        (line,) = check._metrics_port(settings)
        assert line.detail == f"[{address}]:{port} is in use by the running service"
        with pytest.raises(SetupError, match=rf"metrics\.port = {port}: \[{address}\]:{port} cannot be listened on"):
            Served("other", address=address, port=port)
        is_for_both = status.ask(at(tmp_path, port).metrics) is not None
        assert is_for_both == (address == "::")


@pytest.mark.parametrize(
    ("address", "asked"),
    [("0.0.0.0", "127.0.0.1:9400"), ("::", "127.0.0.1:9400"), ("2001:db8::7", "[2001:db8::7]:9400"), ("h", "h:9400")],  # noqa: S104
)
def test_an_address_to_listen_at_is_one_to_ask_at(address: str, asked: str, tmp_path: Path) -> None:
    assert pages.address(at(tmp_path, 9400, address).metrics) == asked

"""The client of the registry against registries, with what Confluent's own client has registered there.

A real one takes part where `make registry` has put it.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from pydantic import SecretStr

from load.servers.schema_registry import Apicurio, Registry
from load.servers.web_server import Handler, answering
from service.admission.registry import Client
from service.errors import RegistryError, SchemaError
from service.settings import Registry as Settings

pytestmark = pytest.mark.integration

PROBE = {"type": "record", "name": "Probe", "namespace": "a", "fields": [{"name": "celsius", "type": "double"}]}
FIRST = {"type": "record", "name": "R", "namespace": "a", "fields": [{"name": "device_id", "type": "string"}]}
ADDED = [
    {"name": "p", "type": ["null", "Probe"], "default": None},
    {"name": "q", "type": ["null", "a.Probe"], "default": None},
]
SECOND = {**FIRST, "fields": [*FIRST["fields"], *ADDED]}


@pytest.fixture(params=["ours", "Apicurio"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "ours":
        with Registry() as ours:
            yield ours.url
        return
    if not Apicurio.is_there():
        pytest.skip("no real registry: `make registry` gets one")
    with Apicurio(tmp_path) as running:
        yield running.url


def test_what_confluents_client_has_registered_is_read(url: str) -> None:
    theirs, mine = SchemaRegistryClient({"url": url}), Client(Settings(url=url))
    probe = theirs.register_schema("probe", Schema(json.dumps(PROBE), "AVRO"))
    first = theirs.register_schema("readings-value", Schema(json.dumps(FIRST), "AVRO"))
    reference = SchemaReference("a.Probe", "probe", 1)
    second = theirs.register_schema("readings-value", Schema(json.dumps(SECOND), "AVRO", [reference]))
    assert len({probe, first, second}) == 3
    assert (mine.schema(first), mine.schema(second + 1_000)) == (FIRST, None)
    fields = mine.schema(second)["fields"]  # type: ignore[index]
    assert [each["type"] for each in fields] == ["string", ["null", PROBE], ["null", "a.Probe"]]
    assert mine.subject("readings-value") == {first: FIRST, second: mine.schema(second)}
    assert mine.subject("nobody/s") == {}


def test_what_is_no_avro_record_is_named() -> None:
    with Registry() as ours:
        mine = Client(Settings(url=ours.url))
        ours.register("values", '{"type": "object"}', kind="JSON")
        with pytest.raises(SchemaError, match="schema 1 is JSON Schema, not Avro"):
            mine.schema(1)
        ours.register("values", '"long"')
        with pytest.raises(SchemaError, match="schema 2: must be an Avro record"):
            mine.schema(2)


def test_a_registry_that_refuses_or_is_not_there_is_named_and_the_next_address_asked(tmp_path: Path) -> None:
    with Registry(user="u", password="p") as ours:  # noqa: S106
        number = ours.register("a", FIRST)
        secret = tmp_path / "secret"
        secret.write_text("p\n")
        both = Settings(url=f"http://127.0.0.1:1,{ours.url}/", user="u", password_file=secret)
        assert Client(both).schema(number) == FIRST
        with pytest.raises(RegistryError, match=rf"{ours.url} does not answer for schema 1: .*401"):
            Client(Settings(url=ours.url)).schema(number)
        secret.unlink()
        with pytest.raises(RegistryError, match=r"No such file or directory: .*secret"):
            Client(both).schema(number)
    with pytest.raises(RegistryError, match=r"http://127\.0\.0\.1:1 does not answer for schema 1: .*refused"):
        Client(Settings(url="http://127.0.0.1:1")).schema(number)


def test_no_redirect_is_followed_with_credentials() -> None:
    with Registry(user="u", password="p") as ours:  # noqa: S106
        number = ours.register("a", FIRST)

        def elsewhere(request: Handler) -> None:
            request.send_response(302)
            request.send_header("Location", ours.url + request.path)
            request.end_headers()

        with answering(elsewhere) as url:
            client = Client(Settings(url=url, user="u", password=SecretStr("p")))
            with pytest.raises(RegistryError, match=r"does not answer for schema 1: .*302"):
                client.schema(number)
        assert ours.requests == {}


def test_one_password_is_not_sent_to_addresses_with_and_without_tls() -> None:
    with pytest.raises(ValueError, match="must be all https:// or all http://"):
        Settings(url="https://registry:1,http://registry:2")

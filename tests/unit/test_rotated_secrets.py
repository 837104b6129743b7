"""Secrets that are replaced while the service runs: who reads them again, and what happens until the file has the new one."""

import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from load.servers.certificates import Authority
from load.servers.schema_registry import Registry as RegistryServer
from service.admission import registry
from service.daemon.backoff import Backoff
from service.errors import (
    OutletLoginError,
    RegistryError,
    SecretFileError,
    SinkLoginError,
    SinkRefusedError,
    SourceLoginError,
    SourceTrustError,
    TidemarkError,
)
from service.kafka import clients, options
from service.monitoring.metrics import Metrics
from service.monitoring.status import Status
from service.redaction import MASK, Secrets, redacted
from service.settings import Kafka, Settings
from service.settings.settings import Registry
from tests import minimal

SCHEMA = {"type": "record", "name": "Reading", "fields": [{"name": "device_id", "type": "string"}]}


def settings(folder: Path, *, files: bool) -> Settings:
    (folder / "secret").write_text("the-first-one\n")
    login: dict[str, Any] = {"password_file": str(folder / "secret")} if files else {"password": "the-first-one"}
    table = {"kind": "jdbc", "name": "history", "url": "jdbc:postgresql://h/d", "table": "t", "user": "u", **login}
    return minimal.settings(
        kafka={"user": "u", **login}, redis={"url": "redis://u@localhost", **(login if files else {})}, outlets=[table]
    )


def backoff(loaded: Settings) -> Backoff:
    stop = threading.Event()
    metrics = Metrics(CollectorRegistry())
    made = Backoff(loaded, metrics, Status(loaded), stop)
    made._stop.wait = lambda _: False  # type: ignore[method-assign,assignment]
    return made


LOGINS = [SourceLoginError, SinkLoginError, OutletLoginError]


@pytest.mark.parametrize("family", [*LOGINS, SecretFileError])
def test_a_login_that_was_accepted_once_is_waited_for_if_its_secret_is_in_a_file(
    family: type[TidemarkError], tmp_path: Path
) -> None:
    waiting = backoff(settings(tmp_path, files=True))
    with pytest.raises(family):  # at the first start: the operator is there, and reads the message
        waiting.wait(family("refused"), "query")
    waiting.progressed()
    waiting.wait(family("refused"), "query")


@pytest.mark.parametrize("family", [*LOGINS, SourceTrustError])
def test_a_secret_of_the_environment_needs_a_new_process(family: type[TidemarkError], tmp_path: Path) -> None:
    waiting = backoff(settings(tmp_path, files=False))
    waiting.progressed()
    with pytest.raises(family):
        waiting.wait(family("refused"), "query")


def test_what_no_secret_can_mend_still_ends_the_process(tmp_path: Path) -> None:
    waiting = backoff(settings(tmp_path, files=True))
    waiting.progressed()
    with pytest.raises(SinkRefusedError):
        waiting.wait(SinkRefusedError("NOPERM"), "query")


def test_a_standby_waits_for_the_password_of_redis_and_for_no_other(tmp_path: Path) -> None:
    waiting = backoff(settings(tmp_path, files=True))
    waiting.reached_redis()
    waiting.wait(SinkLoginError("refused"), "lease")
    with pytest.raises(SourceLoginError):
        waiting.wait(SourceLoginError("refused"), "query")


def test_a_replaced_password_is_a_secret_of_the_log_and_so_is_the_former_one(tmp_path: Path) -> None:
    secrets = Secrets(settings(tmp_path, files=True))
    assert "the-first-one" in secrets.current()
    (tmp_path / "new").write_text("the-second-one\n")
    (tmp_path / "new").replace(tmp_path / "secret")
    assert redacted("the-first-one, the-second-one", secrets.current()) == f"{MASK}, {MASK}"
    (tmp_path / "secret").unlink()  # between two files
    assert redacted("the-second-one", secrets.current()) == MASK


def test_a_kept_client_of_kafka_has_another_stamp_when_a_link_of_kubernetes_turns(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "password").write_text("secret")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "password").symlink_to("..data/password")
    kafka = Kafka(bootstrap="b:1", topics=("t",), user="u", password_file=tmp_path / "password")
    before = options.stamp(kafka)
    assert options.stamp(kafka) == before
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    after = options.stamp(kafka)
    assert after != before, "the bytes are the same, and the file is another one"
    (tmp_path / "password").unlink()
    assert options.stamp(kafka) not in (before, after)


def test_files_of_options_are_read_again_too(tmp_path: Path) -> None:
    named = {"ssl.ca.location": str(tmp_path / "ca.pem"), "https.ca.location": str(tmp_path / "idp.pem")}
    kafka = Kafka(bootstrap="b:1", topics=("t",), options={**named, "client.rack": "a"}, key=None)
    assert options.files(kafka) == (tmp_path / "ca.pem", tmp_path / "idp.pem")


def test_a_certificate_whose_key_is_not_yet_replaced_is_a_file_that_may_change(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    first, second = authority.issue("first"), authority.issue("second")
    pair = {"certificate": second.certificate, "key": first.key, "ca_file": authority.ca_file}
    with pytest.raises(SecretFileError, match="of one pair"):
        clients.admin(Kafka(bootstrap="localhost:1", topics=("t",), **pair))


def test_the_registry_gets_the_new_password_with_the_request_that_it_refuses_by_the_old_one(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("first")
    with RegistryServer(user="u", password="first") as server:  # noqa: S106
        number = server.register("readings-value", SCHEMA)
        client = registry.Client(Registry(url=server.url, user="u", password_file=secret))
        assert client.subjects_of(number)
        server.password = "second"  # noqa: S105 - revoked before the file has the new one
        with pytest.raises(RegistryError, match="Unauthorized"):
            client.subjects_of(number)
        secret.write_text("second")
        assert client.subjects_of(number)
        server.password = "third"  # noqa: S105
        secret.write_text("third")  # in time: no request fails
        assert client.subjects_of(number)
        client.close()

"""One set of options, as librdkafka and the Java client name them."""

from pathlib import Path
from typing import Any

import pytest

from service.errors import SettingsError
from service.kafka import clients
from service.kafka.options import java, librdkafka
from service.kafka.source import CONSUMER_OPTIONS
from service.settings import Kafka

AWKWARD = 'pa/s"s\\9'


def settings(**given: Any) -> Kafka:
    return Kafka.model_validate({"bootstrap": "broker:9092", "topics": ["readings"], **given})


@pytest.fixture
def pem(tmp_path: Path) -> dict[str, Path]:
    names = {"ca_file": "ca.pem", "certificate": "own.pem", "key": "own.key"}
    for name in names.values():
        (tmp_path / name).write_text(f"the text of {name}\n")
    return {key: tmp_path / name for key, name in names.items()}


def test_without_a_user_or_certificates_there_is_only_the_address() -> None:
    assert librdkafka(settings()) == java(settings()) == {"bootstrap.servers": "broker:9092"}


def test_a_user_logs_in_with_scram_over_tls_in_both(tmp_path: Path, pem: dict[str, Path]) -> None:
    secret = tmp_path / "secret"
    secret.write_text(AWKWARD + "\n")
    given = settings(user="tide", password_file=secret, ca_file=pem["ca_file"])
    common = {"bootstrap.servers": "broker:9092", "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
    assert librdkafka(given) == common | {
        "sasl.username": "tide",
        "sasl.password": AWKWARD,
        "ssl.ca.location": str(pem["ca_file"]),
    }
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    assert java(given) == common | {
        "sasl.jaas.config": f'{login} username="tide" password="pa/s\\"s\\\\9";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "the text of ca.pem\n",
    }


def test_a_certificate_and_its_key_are_mutual_tls_in_both(pem: dict[str, Path]) -> None:
    common = {"bootstrap.servers": "broker:9092", "security.protocol": "SSL"}
    given = settings(**pem)
    assert librdkafka(given) == common | {
        "ssl.ca.location": str(pem["ca_file"]),
        "ssl.certificate.location": str(pem["certificate"]),
        "ssl.key.location": str(pem["key"]),
    }
    assert java(given) == common | {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "the text of ca.pem\n",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "the text of own.pem\n",
        "ssl.keystore.key": "the text of own.key\n",
    }


def test_options_replace_what_the_keys_say_and_are_translated_too() -> None:
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", "client.rack": "a"}
    by_key = settings(user="tide", password="p", options=options)  # noqa: S106
    by_option = settings(options={**options, "sasl.username": "tide", "sasl.password": "p"})
    for given in (by_key, by_option):
        assert librdkafka(given).items() >= {**options, "sasl.username": "tide", "sasl.password": "p"}.items()
        assert java(given) == {
            "bootstrap.servers": "broker:9092",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="tide" password="p";',
            "client.rack": "a",
        }


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing: Kafka's password cannot be read"):
        librdkafka(settings(user="tide", password_file=tmp_path / "missing"))
    with pytest.raises(SettingsError, match=r"kafka\.ca_file: .*missing cannot be read"):
        java(settings(ca_file=tmp_path / "missing"))
    with pytest.raises(SettingsError, match=r"sasl\.mechanism 'GSSAPI' with a user"):
        java(settings(user="tide", password="p", options={"sasl.mechanism": "GSSAPI"}))  # noqa: S106
    with pytest.raises(SettingsError, match=r"refuses its options: No such configuration property: \"max\.poll\""):
        clients.consumer(settings(options={"max.poll": "1"}))
    for given in ({"password": "secret"}, {"certificate": "own.pem"}, {"key": "own.key"}):
        with pytest.raises(ValueError, match=r"user: is missing|certificate and key: give both"):
            settings(**given)


def test_readers_of_both_libraries_read_committed_records_only() -> None:
    assert clients.READ_COMMITTED.items() <= CONSUMER_OPTIONS.items()

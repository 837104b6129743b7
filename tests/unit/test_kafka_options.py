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
        assert librdkafka(given) == {
            "bootstrap.servers": "broker:9092",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "tide",
            "sasl.password": "p",
            "client.rack": "a",
        }
        assert java(given) == {
            "bootstrap.servers": "broker:9092",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="tide" password="p";',
            "client.rack": "a",
        }


OIDC = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://idp/token"}
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


def test_a_login_by_oidc_is_translated_for_both(tmp_path: Path, pem: dict[str, Path]) -> None:
    secret = tmp_path / "secret"
    secret.write_text(AWKWARD)
    more = {
        "sasl.oauthbearer.scope": "readings",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool=1",
        "https.ca.location": str(pem["ca_file"]),
    }
    given = settings(user="tide", password_file=secret, options={**OIDC, **more})
    common = {
        "bootstrap.servers": "broker:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
    }
    assert librdkafka(given) == {
        **common,
        **more,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "tide",
        "sasl.oauthbearer.client.secret": AWKWARD,
    }
    assert java(given) == common | {
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": f'{MODULE} clientId="tide" clientSecret="pa/s\\"s\\\\9" scope="readings" '
        'extension_logicalCluster="lkc-1" extension_identityPoolId="pool=1" '
        'ssl.truststore.type="PEM" ssl.truststore.certificates="the text of ca.pem\\n";',
    }


def test_the_clients_id_and_secret_may_be_options_of_either_name() -> None:
    by_key = librdkafka(settings(user="tide", password="p", options=OIDC))  # noqa: S106
    for name in ("client", "client.credentials.client"):
        login = {f"sasl.oauthbearer.{name}.id": "tide", f"sasl.oauthbearer.{name}.secret": "p"}
        options = {"security.protocol": "SASL_SSL", "sasl.oauthbearer.method": "OIDC", **OIDC, **login}
        assert librdkafka(settings(options=options)) == {**by_key, "sasl.oauthbearer.method": "OIDC"}


def test_the_name_of_the_host_need_not_be_that_of_the_certificate_in_either() -> None:
    name = "ssl.endpoint.identification.algorithm"
    for value in ("none", ""):
        given = settings(options={"security.protocol": "SSL", name: value})
        assert librdkafka(given)[name] == "none"
        assert java(given)[name] == ""
        clients.consumer(given).close()
    given = settings(options={name: "https"})
    assert librdkafka(given)[name] == java(given)[name] == "https"


def test_pem_in_options_is_for_both() -> None:
    given = {"ssl.ca.pem": "the authority", "ssl.certificate.pem": "the chain", "ssl.key.pem": "the key"}
    assert librdkafka(settings(options=given)).items() >= given.items()
    assert java(settings(options=given)) == {
        "bootstrap.servers": "broker:9092",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "the authority",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "the chain",
        "ssl.keystore.key": "the key",
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sasl.mechanism": "GSSAPI"}, r"GSSAPI: Kerberos: .*wheel"),
        ({"security.protocol": "SASL_PLAINTEXT"}, r"GSSAPI: Kerberos"),
        ({"sasl.kerberos.service.name": "kafka"}, r"sasl\.kerberos\.service\.name: Kerberos is not for both"),
        (
            {"sasl.mechanisms": "AWS_MSK_IAM", "security.protocol": "SASL_SSL"},
            r"AWS_MSK_IAM: .*SASL/SCRAM.*MSK Serverless",
        ),
        ({"sasl.jaas.config": "X required;"}, r"sasl\.jaas\.config: is an option of Java's.*user and password_file"),
        ({"sasl.login.callback.handler.class": "X"}, r"sasl\.login\.callback\.handler\.class: is an option of Java's"),
        ({"ssl.truststore.location": "x.jks"}, r"ssl\.truststore\.location: .*ca_file"),
        ({"ssl.keystore.location": "x.p12"}, r"ssl\.keystore\.location: .*certificate and key"),
        ({"enable.ssl.certificate.verification": "false"}, r"enable\.ssl\.certificate\.verification: .*ca_file"),
        ({"ssl.cipher.suites": "X"}, r"ssl\.cipher\.suites: "),
        pytest.param({"ssl.crl.location": "x"}, r"ssl\.crl\.location: ", id="crl"),
        ({**OIDC, "sasl.oauthbearer.method": "default"}, r"only OIDC with client_credentials"),
        ({**OIDC, "sasl.oauthbearer.grant.type": "urn:x:jwt-bearer"}, r"only OIDC with client_credentials"),
        ({**OIDC, "sasl.oauthbearer.assertion.algorithm": "RS256"}, r"sasl\.oauthbearer\.assertion\.algorithm: "),
        ({**OIDC, "sasl.oauthbearer.metadata.authentication.type": "azure_imds"}, r"sasl\.oauthbearer\.metadata"),
        (OIDC, r"sasl\.oauthbearer\.client\.id, sasl\.oauthbearer\.client\.secret: is missing.*user and password_file"),
        (
            {"sasl.mechanism": "OAUTHBEARER", "enable.sasl.oauthbearer.unsecure.jwt": "true"},
            r"without a signature.*OIDC",
        ),
    ],
)
def test_what_only_one_client_can_do_is_refused_by_its_name(options: dict[str, str], says: str) -> None:
    for translate in (librdkafka, java):
        with pytest.raises(SettingsError, match=says) as refused:
            translate(settings(options=options))
        assert "docs/operator/kafka.md#logins" in str(refused.value)


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing: Kafka's password cannot be read"):
        librdkafka(settings(user="tide", password_file=tmp_path / "missing"))
    with pytest.raises(SettingsError, match=r"kafka\.ca_file: .*missing cannot be read"):
        java(settings(ca_file=tmp_path / "missing"))
    with pytest.raises(SettingsError, match=r"sasl\.mechanism 'SCRAM-SHA-1' with a user"):
        java(settings(user="tide", password="p", options={"sasl.mechanism": "SCRAM-SHA-1"}))  # noqa: S106
    with pytest.raises(SettingsError, match=r"refuses its options: No such configuration property: \"max\.poll\""):
        clients.consumer(settings(options={"max.poll": "1"}))
    for given in ({"password": "secret"}, {"certificate": "own.pem"}, {"key": "own.key"}):
        with pytest.raises(ValueError, match=r"user: is missing|certificate and key: give both"):
            settings(**given)


def test_readers_of_both_libraries_read_committed_records_only() -> None:
    assert clients.READ_COMMITTED.items() <= CONSUMER_OPTIONS.items()

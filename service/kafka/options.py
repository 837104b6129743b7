"""Make the options of both client libraries from one set: librdkafka's names, translated for Spark's Java client.

`[kafka] user, password_file, ca_file, certificate, key` become librdkafka options. `[kafka.options]` replaces and adds
options, in librdkafka's names too. `java` translates the names that differ:

    librdkafka                                          Java
    sasl.mechanism(s), sasl.username, sasl.password     sasl.mechanism, sasl.jaas.config
    ssl.ca.location                                     ssl.truststore.type, ssl.truststore.certificates
    ssl.certificate.location, ssl.key.location          ssl.keystore.type, ssl.keystore.certificate.chain, ssl.keystore.key

Every other option has one name in both libraries, or concerns one library only. The Java client ignores names that it
does not have; librdkafka refuses them.
"""

from collections.abc import Mapping
from pathlib import Path

from service.errors import SettingsError
from service.settings import Kafka

MECHANISM = "SCRAM-SHA-512"
"""The mechanism of `[kafka] user`, unless `[kafka.options]` sets another."""
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_TRANSLATED = {
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
}


def librdkafka(kafka: Kafka) -> dict[str, str]:
    """Return the connection's options for librdkafka; `[kafka.options]` replaces the others.

    The result has passwords: never log it. Raises SettingsError when the password's file cannot be read.
    """
    options = {"bootstrap.servers": kafka.bootstrap}
    with_tls = kafka.ca_file is not None or kafka.certificate is not None
    if kafka.user is not None:
        options |= {"security.protocol": "SASL_SSL", "sasl.mechanism": MECHANISM, "sasl.username": kafka.user}
        options["sasl.password"] = _password(kafka)
    elif with_tls:
        options["security.protocol"] = "SSL"
    files = {
        "ssl.ca.location": kafka.ca_file,
        "ssl.certificate.location": kafka.certificate,
        "ssl.key.location": kafka.key,
    }
    options |= {name: str(path) for name, path in files.items() if path is not None}
    return {**options, **kafka.options}


def java(kafka: Kafka) -> dict[str, str]:
    """Return the connection's options for the Java client.

    The result has certificates and key as text, so executors need no files, and passwords: never log it.
    Raises SettingsError when a file cannot be read, or when the mechanism has no user and password.
    """
    settings = librdkafka(kafka)
    options = {name: value for name, value in settings.items() if name not in _TRANSLATED}
    mechanism = settings.get("sasl.mechanisms", settings.get("sasl.mechanism"))
    if mechanism is not None:
        options["sasl.mechanism"] = mechanism
    if "sasl.username" in settings and "sasl.jaas.config" not in settings:
        options["sasl.jaas.config"] = _jaas(mechanism or "", settings)
    if "ssl.ca.location" in settings:
        options["ssl.truststore.type"] = "PEM"
        options["ssl.truststore.certificates"] = _text("ca_file", settings["ssl.ca.location"])
    if "ssl.certificate.location" in settings:
        options["ssl.keystore.type"] = "PEM"
        options["ssl.keystore.certificate.chain"] = _text("certificate", settings["ssl.certificate.location"])
        options["ssl.keystore.key"] = _text(
            "key", settings.get("ssl.key.location", settings["ssl.certificate.location"])
        )
    return options


def _jaas(mechanism: str, settings: Mapping[str, str]) -> str:
    if mechanism not in _LOGIN:
        what = f"kafka.options: sasl.mechanism {mechanism!r} with a user: there are {', '.join(_LOGIN)}"
        raise SettingsError(what, remedy="Choose one of them, or give the Java client its own sasl.jaas.config")
    user, password = (_quoted(settings.get(name, "")) for name in ("sasl.username", "sasl.password"))
    return f"{_LOGIN[mechanism]} required username={user} password={password};"


def _quoted(text: str) -> str:
    """Quote `text` for a JAAS configuration, which java.io.StreamTokenizer parses."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _password(kafka: Kafka) -> str:
    try:
        return kafka.secret() or ""
    except OSError as error:
        what = f"{kafka.password_file}: Kafka's password cannot be read ({error.strerror})"
        raise SettingsError(what, remedy="Name the file in [kafka] password_file") from error


def _text(key: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        what = f"kafka.{key}: {path} cannot be read ({error})"
        raise SettingsError(what, remedy="Name a PEM file that this user may read") from error

"""Make the options of both client libraries from one set: librdkafka's names, translated for Spark's Java client.

`[kafka] user, password_file, ca_file, certificate, key` become librdkafka options. `[kafka.options]` replaces and adds
options, in librdkafka's names too. `java` translates the names that differ:

    librdkafka                                          Java
    sasl.mechanism(s), sasl.username, sasl.password     sasl.mechanism, sasl.jaas.config
    sasl.oauthbearer.method = oidc, client.id and       sasl.jaas.config, sasl.login.callback.handler.class
      client.secret, scope, extensions, https.ca.*
    ssl.ca.location, ssl.ca.pem                         ssl.truststore.type, ssl.truststore.certificates
    ssl.certificate.*, ssl.key.*                        ssl.keystore.type, ssl.keystore.certificate.chain, ssl.keystore.key
    ssl.endpoint.identification.algorithm = none        the same name, with an empty value

Every other option has one name in both libraries, or concerns one library only. The Java client ignores names that it
does not have; librdkafka refuses them. What only one of the two can do is refused here, by its name, with what works instead.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from service.errors import SecretFileError, SettingsError
from service.redaction import file_stamp
from service.settings import Kafka

MECHANISM = "SCRAM-SHA-512"
"""The mechanism of `[kafka] user`, unless `[kafka.options]` sets another."""
_PACKAGE = "org.apache.kafka.common.security"
_LOGIN = {
    "PLAIN": f"{_PACKAGE}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_PACKAGE}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_PACKAGE}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule",
}
_OAUTH = "sasl.oauthbearer."
_TRANSLATED = (
    *("sasl.mechanism", "sasl.username", "sasl.password", "https.ca."),
    *(f"{_OAUTH}{name}" for name in ("method", "client.", "scope", "extensions", "grant.type")),
    *("ssl.ca.", "ssl.certificate.", "ssl.key.location", "ssl.key.pem"),
)
"""Names and beginnings of names that the Java client gets in another form."""
_LOGINS = "docs/operator/kafka.md#logins"
_INSTEAD = "Give the service a listener with SCRAM-SHA-512, mutual TLS or OAUTHBEARER with OIDC"
_ONLY_LIBRDKAFKA = "Spark's Java client has nothing like it"
_REFUSED: Mapping[str, tuple[str, str]] = {
    "sasl.jaas.config": ("is an option of Java's", "Set [kafka] user and password_file: both clients get the login"),
    "sasl.login.": ("is an option of Java's", "Set [kafka] user and password_file, or the options of OIDC"),
    "sasl.client.callback.": ("is an option of Java's", _INSTEAD),
    "ssl.truststore.": ("is an option of Java's", "Name a PEM file in [kafka] ca_file"),
    "ssl.keystore.": ("is not for both clients", "Name PEM files in [kafka] certificate and key"),
    "ssl.crl.location": (_ONLY_LIBRDKAFKA, "Leave it out"),
    "ssl.cipher.suites": ("both clients have it, with other names of suites", "Limit the suites at the brokers"),
    "ssl.ca.certificate.stores": (_ONLY_LIBRDKAFKA, "Name a PEM file in [kafka] ca_file"),
    "ssl.engine.": (_ONLY_LIBRDKAFKA, "Name PEM files in [kafka] certificate and key"),
    "sasl.kerberos.": ("Kerberos is not for both clients", _INSTEAD),
    f"{_OAUTH}assertion.": (f"{_ONLY_LIBRDKAFKA} (3.9.1)", "Use the grant client_credentials, with a client's secret"),
    f"{_OAUTH}metadata.": (_ONLY_LIBRDKAFKA, "Use the grant client_credentials, with a client's secret"),
    f"{_OAUTH}config": ("tokens without a signature are not for both clients", "Use OIDC"),
    "enable.sasl.oauthbearer.unsecure.jwt": ("tokens without a signature are not for both clients", "Use OIDC"),
}
"""What is wrong with options of these names or beginnings, and what works instead."""
_FILE = re.compile(r"(ssl\.(ca|certificate|key)|https\.ca)\.location")
_NOT_BUILT = "confluent-kafka's wheel has no Kerberos"
_MECHANISMS = {
    "GSSAPI": (f"Kerberos: {_NOT_BUILT}, so only Spark's client could log in", _INSTEAD),
    "AWS_MSK_IAM": (
        "librdkafka has no such mechanism, so only Spark's client could log in",
        "Turn on SASL/SCRAM or TLS client authentication in the MSK cluster. MSK Serverless has neither",
    ),
}


def librdkafka(kafka: Kafka) -> dict[str, str]:
    """Return the connection's options for librdkafka; `[kafka.options]` replaces the others.

    The result has passwords: never log it. Raises SettingsError for an option that only one of the two libraries can follow, and
    when the password's file cannot be read.
    """
    options = {"bootstrap.servers": kafka.bootstrap, **_of_keys(kafka), **kafka.options}
    _refuse(options)
    mechanism = _mechanism(options)
    if mechanism is not None:
        options.pop("sasl.mechanisms", None)
        options["sasl.mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        options = _oidc(options)
    if options.get("ssl.endpoint.identification.algorithm") == "":  # as Java has it
        options["ssl.endpoint.identification.algorithm"] = "none"
    return options


def java(kafka: Kafka) -> dict[str, str]:
    """Return the connection's options for the Java client.

    The result has certificates and key as text, so executors need no files, and passwords: never log it.
    Raises SettingsError as `librdkafka`, when a file cannot be read, or when the mechanism has no user and password.
    """
    settings = librdkafka(kafka)
    options = {name: value for name, value in settings.items() if not name.startswith(_TRANSLATED)}
    mechanism = settings.get("sasl.mechanism")
    if mechanism is not None:
        options["sasl.mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        options["sasl.login.callback.handler.class"] = f"{_PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler"
        options["sasl.jaas.config"] = _jaas(mechanism, _oidc_login(settings))
    elif "sasl.username" in settings:
        login = {"username": settings["sasl.username"], "password": settings.get("sasl.password", "")}
        options["sasl.jaas.config"] = _jaas(mechanism or "", login)
    trusted = _pem(settings, "ssl.ca", "ca_file")
    if trusted is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    chain = _pem(settings, "ssl.certificate", "certificate")
    if chain is not None:
        options |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain}
        options["ssl.keystore.key"] = _pem(settings, "ssl.key", "key") or chain
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        options["ssl.endpoint.identification.algorithm"] = ""
    return options


def files(kafka: Kafka) -> tuple[Path, ...]:
    """Return the files of the password and of the certificates. Each new client reads them again; a client that runs does not."""
    named = [kafka.password_file, kafka.ca_file, kafka.certificate, kafka.key]
    by_option = [Path(value) for name, value in kafka.options.items() if _FILE.fullmatch(name)]
    return tuple(dict.fromkeys(path for path in [*named, *by_option] if path is not None))


def stamp(kafka: Kafka) -> tuple[object, ...]:
    """Return what changes when one of `files` is replaced, for a client that is kept: then the next one takes its place."""
    return tuple(map(file_stamp, files(kafka)))


def _of_keys(kafka: Kafka) -> dict[str, str]:
    """Return the options that the keys of the section make."""
    options = {}
    if kafka.user is not None:
        options = {"security.protocol": "SASL_SSL", "sasl.mechanism": MECHANISM, "sasl.username": kafka.user}
        options["sasl.password"] = _password(kafka)
    elif kafka.ca_file is not None or kafka.certificate is not None:
        options["security.protocol"] = "SSL"
    files = {
        "ssl.ca.location": kafka.ca_file,
        "ssl.certificate.location": kafka.certificate,
        "ssl.key.location": kafka.key,
    }
    return options | {name: str(path) for name, path in files.items() if path is not None}


def _mechanism(options: Mapping[str, str]) -> str | None:
    """Return the mechanism of a login; None without one. librdkafka's own default is GSSAPI."""
    given = options.get("sasl.mechanisms", options.get("sasl.mechanism"))
    if given is None and options.get("security.protocol", "").upper().startswith("SASL"):
        return "GSSAPI"
    return given.upper() if given is not None else None


def _refuse(options: Mapping[str, str]) -> None:
    """Raise SettingsError for the first option that only one of the two libraries can follow."""
    for name, value in options.items():
        for beginning, (reason, remedy) in _REFUSED.items():
            if name.startswith(beginning):
                raise SettingsError(f"kafka.options: {name}: {reason}", remedy=f"{remedy}: {_LOGINS}")
        if name == "enable.ssl.certificate.verification" and value.lower() in {"false", "f", "0"}:
            what = f"kafka.options: {name}: Spark's Java client always verifies the brokers' certificates"
            remedy = "Name their authority in ca_file, or the certificate itself if it is self-signed"
            raise SettingsError(what, remedy=f"{remedy}: {_LOGINS}")
    mechanism = _mechanism(options)
    if mechanism in _MECHANISMS:
        reason, remedy = _MECHANISMS[mechanism]
        raise SettingsError(f"kafka.options: sasl.mechanism {mechanism}: {reason}", remedy=f"{remedy}: {_LOGINS}")


def _oidc(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with OIDC's: a user is the client's id, and a password its secret."""
    given = {_OAUTH + "method": "oidc", **options}
    for name, long, of_user in (
        ("client.id", "client.credentials.client.id", "sasl.username"),
        ("client.secret", "client.credentials.client.secret", "sasl.password"),
    ):
        login = given.pop(of_user, None)
        value = given.pop(_OAUTH + long, given.get(_OAUTH + name, login))
        if value is not None:
            given[_OAUTH + name] = value
    if given[_OAUTH + "method"].lower() != "oidc" or given.get(_OAUTH + "grant.type", _GRANT) != _GRANT:
        what = "kafka.options: sasl.mechanism OAUTHBEARER: both clients have only OIDC with client_credentials"
        raise SettingsError(what, remedy=f'Set "{_OAUTH}method" = "oidc": {_LOGINS}')
    missing = [name for name in ("client.id", "client.secret", "token.endpoint.url") if not given.get(_OAUTH + name)]
    if missing:
        what = f"kafka.options: sasl.mechanism OAUTHBEARER: {', '.join(_OAUTH + name for name in missing)}: is missing"
        raise SettingsError(
            what, remedy=f"[kafka] user and password_file are the client's id and its secret: {_LOGINS}"
        )
    return given


_GRANT = "client_credentials"


def _oidc_login(settings: Mapping[str, str]) -> dict[str, str]:
    """Return what the Java client's login gets: client, scope, extensions, and what the token endpoint is trusted by."""
    login = {"clientId": settings[_OAUTH + "client.id"], "clientSecret": settings[_OAUTH + "client.secret"]}
    if scope := settings.get(_OAUTH + "scope"):
        login["scope"] = scope
    for each in filter(None, settings.get(_OAUTH + "extensions", "").split(",")):
        name, _, value = each.partition("=")
        login[f"extension_{name.strip()}"] = value.strip()
    trusted = _pem(settings, "https.ca", "options: https.ca.location")
    if trusted is not None:
        login |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    return login


def _jaas(mechanism: str, login: Mapping[str, str]) -> str:
    if mechanism not in _LOGIN:
        what = f"kafka.options: sasl.mechanism {mechanism!r} with a user: there are {', '.join(_LOGIN)}"
        raise SettingsError(what, remedy=f"Choose one of them: {_LOGINS}")
    return " ".join([_LOGIN[mechanism], "required", *(f"{name}={_quoted(text)}" for name, text in login.items())]) + ";"


def _quoted(text: str) -> str:
    """Quote `text` for a JAAS configuration, which java.io.StreamTokenizer parses."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _password(kafka: Kafka) -> str:
    try:
        return kafka.secret() or ""
    except OSError as error:
        what = f"{kafka.password_file}: Kafka's password cannot be read ({error.strerror})"
        raise SecretFileError(what, remedy="Name the file in [kafka] password_file") from error


def _pem(settings: Mapping[str, str], option: str, key: str) -> str | None:
    """Return the text of `option`.pem, or of the file that `option`.location names; None without both."""
    if option + ".pem" in settings or option + ".location" not in settings:
        return settings.get(option + ".pem")
    path = settings[option + ".location"]
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        what = f"kafka.{key}: {path} cannot be read ({error})"
        raise SecretFileError(what, remedy="Name a PEM file that this user may read") from error

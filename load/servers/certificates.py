"""Certificates for tests: an authority in a folder, and certificates that it issues for loopback.

authority = Authority(folder)
server = authority.issue("broker")    # PEM files: server.certificate, server.key
"""

import contextlib
import datetime
import functools
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from load.servers.server_process import HOST

_DAY, _HOUR = datetime.timedelta(days=1), datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key (PKCS #8), each a PEM file."""

    certificate: Path
    key: Path


class Authority:
    """An authority of its own; `ca_file` is what clients trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {folder.name}")])
        self.ca_file = folder / "ca.pem"
        folder.mkdir(parents=True, exist_ok=True)
        unlimited = x509.BasicConstraints(ca=True, path_length=None)
        made = self._certificate(self._name, self._key, [(unlimited, True)])
        self.ca_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    @functools.lru_cache  # noqa: B019 - an authority lives as long as its test
    def issue(self, name: str, host: str = HOST, *, expired: bool = False) -> Certificate:
        """A certificate for a server at the address `host`, or for a client called `name`; `expired` since an hour."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._certificate(subject, key, [(address, False)], -_HOUR if expired else _DAY)
        files = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files

    def server(
        self, name: str = "server", *, host: str = HOST, mutual: bool = False, expired: bool = False
    ) -> ssl.SSLContext:
        """Return the TLS context of a server in Python; `mutual` asks clients for a certificate."""
        issued = self.issue(name, host, expired=expired)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.ca_file))
        context.load_cert_chain(issued.certificate, issued.key)
        context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
        return context

    def _certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extensions: list[tuple[x509.ExtensionType, bool]],
        lasts: datetime.timedelta = _DAY,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + lasts)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())


@contextlib.contextmanager
def shaking_hands(context: ssl.SSLContext) -> Iterator[str]:
    """A server of TLS that only shakes hands; its address."""
    with socket.create_server((HOST, 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    with contextlib.suppress(OSError), context.wrap_socket(client, server_side=True) as connection:
                        connection.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"{HOST}:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)

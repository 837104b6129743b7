"""A token endpoint on loopback: OAuth 2's grant of client credentials, with tokens that a broker checks by `jwks`.

with TokenEndpoint(folder, clients={"tidemark": "secret"}) as endpoint:
    endpoint.url    # what clients take as sasl.oauthbearer.token.endpoint.url
    endpoint.jwks   # the file of keys, for sasl.oauthbearer.jwks.endpoint.url of a broker
"""

import base64
import contextlib
import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from load.servers.server_process import HOST, Started, free_port
from load.servers.web_server import Handler, WebServer

AUDIENCE, ISSUER = "kafka", "tidemark-tests"


class TokenEndpoint(Started):
    """Answers by TLS with `context`, also again after its end. `requests` has the form and the client of each request."""

    def __init__(
        self,
        folder: Path,
        clients: Mapping[str, str],
        *,
        context: ssl.SSLContext | None = None,
        lifetime_s: int = 300,
    ) -> None:
        self.lifetime_s = lifetime_s
        self.requests: list[dict[str, str]] = []
        self._clients, self._port = clients, free_port()
        self._scheme = "http" if context is None else "https"
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        folder.mkdir(parents=True, exist_ok=True)
        self.jwks = folder / "jwks.json"
        public = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256", "n": _number(public.n), "e": _number(public.e)}
        self.jwks.write_text(json.dumps({"keys": [key]}), encoding="utf-8")
        endpoint = self

        class Asked(Handler):
            def answer(self) -> None:
                form = {key: values[0] for key, values in parse_qs(self.body().decode()).items()}
                self.send_json(*endpoint.answer(form, self.headers.get("Authorization", "")))

        self._server = WebServer(self._port, Asked, context)

    @property
    def url(self) -> str:
        return f"{self._scheme}://{HOST}:{self._port}/token"

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.close()

    def answer(self, form: Mapping[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the document for a request."""
        with contextlib.suppress(ValueError):
            client, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
            self.requests.append({**form, "client": client})
            if form.get("grant_type") == "client_credentials" and self._clients.get(client) == secret:
                token = self.token(client, form.get("scope", ""))
                return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime_s}
        return 401, {"error": "invalid_client", "error_description": "the client's secret is wrong"}

    def token(self, client: str, scope: str) -> str:
        """Return a signed token for the client."""
        now = int(time.time())
        claims = {"sub": client, "iss": ISSUER, "aud": AUDIENCE, "scope": scope, "iat": now}
        claims |= {"exp": now + self.lifetime_s}
        head = {"alg": "RS256", "typ": "JWT", "kid": "1"}
        signed = ".".join(_text(json.dumps(each).encode()) for each in (head, claims))
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(number: int) -> str:
    return _text(number.to_bytes((number.bit_length() + 7) // 8, "big"))

"""Secrets in texts: *** takes the place of those of the settings, of logins in URLs and of what looks like a secret."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from service.settings import Settings

MASK = "***"
_SHORTEST = 4
"""Shorter secrets are not replaced: they would take letters out of every line."""
_LOGIN = re.compile(
    r"(\b[a-z][a-z0-9+.-]{0,30}://)[^/\s@'\":]{0,500}:((?!\d{1,5}[/?#,])[^\s'\",;]{0,500}|[^/\s@'\"]{0,500})@"
    r"|(\bjdbc:oracle:[a-z0-9]{0,20}:)[^/\s@'\"]{0,500}/([^\s'\",;]{0,500})@",
    re.IGNORECASE,
)
"""The address before user:password of a URL, and the password, which may have / and @ although it should not; and the same of
Oracle's user/password."""
_NAME = (
    r"(?:password|passwd|\bpwd|passphrase|secret|token|api[_-]?key|private[._-]key|credential|jaas|ssl[._]key|auth[._]user[._]info"
    r"|(?:access|account|shared)[._-]?key)"
    r"[\w.-]{0,80}"
)
"""A name that says secret, from the word on. Lengths are limited, so that a long line takes no quadratic time."""
_OPTION = re.compile(_NAME, re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"""({_NAME}\\?["']?\s*[=:]\s*)(?:(\\?")[^"]*?(\\?")|(')[^']*(')|[^\s,;&"'{{}}()[\]]+)""", re.IGNORECASE
)
"""Such a name with its value: in quotes, in quotes that JSON has escaped, or up to a space or a separator."""
_SPACED = re.compile(
    rf"({_NAME})([ \t]{{1,80}})"
    r"(?!(?:a|and|are|at|by|cannot|for|from|has|in|is|may|must|needs|no|not|of|on|or|that|the|to|was|which|with)\b)[^\s\"',;]+",
    re.IGNORECASE,
)
"""Such a name with its value after a space, as a command line and a file of properties have it."""
_BEFORE = re.compile(r"[\w.-]{0,80}\Z")
_PLACE = re.compile(r"(?:file|location|path|url)\s*$", re.IGNORECASE)
"""The end of a name whose value says where a secret is, such as `ssl.key.location`."""
_WITHIN = re.compile(rf"""{_NAME}\s*[=:]\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s,;&"'{{}}()[\]]+))""", re.IGNORECASE)
"""Such a name in the value of an option, with its value: JAAS escapes quotes by a backslash."""
_PLAIN = re.compile(r"true|false|\d{1,9}", re.IGNORECASE)
"""A switch or a time, such as of `tokenauth` or `tokenlifetime`: *** in its place would spoil every text."""
_PARAMETER = re.compile(rf"[?&;](?:[\w.-]{{0,40}}(?:{_NAME}|signature)|sig|pass|code)=([^&;#\s\"']+)", re.IGNORECASE)
"""A secret of a URL. `sig` and `signature` are the right itself, as in addresses of Azure, S3 and Google for one file."""
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization\\?[\"']?\s*[=:,]\s*(?:b(?=[\"']))?\\?[\"']?)(?:(?:basic|bearer|digest|negotiate)\s+)?[^\s\"',]+"
    r"|\b((?:set-)?cookie\\?[\"']?\s*[=:,]\s*(?:b(?=[\"']))?\\?[\"']?)[^\r\n\"']+",
    re.IGNORECASE,
)
"""Of a cookie all: what a site calls its own is no name that says secret."""
_SIGNED = re.compile(r"\beyJ[\w-]{8,4000}\.eyJ[\w-]{8,4000}\.[\w-]{0,4000}")
"""A JSON Web Token, which is a login for as long as it is valid."""
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def secrets_of(settings: "Settings") -> list[str]:
    """Return the secrets of the settings in the forms that texts may have them in, the longest first."""
    found = set()
    for each in _secrets(settings):
        forms = {each, unquote(each)}
        found |= forms | {json.dumps(form)[1:-1] for form in forms}
    return sorted((each for each in found if len(each) >= _SHORTEST), key=lambda each: (-len(each), each))


class Secrets:
    """The secrets of settings, also those that have come into a password's file since: `current` looks at the files.

    A former secret stays, because an error or a page may still have it.
    """

    def __init__(self, *several: "Settings") -> None:
        self._several = several
        self._files = [file for settings in several for file in _password_files(settings)]
        self._seen: tuple[object, ...] | None = None
        self._secrets: list[str] = []

    def current(self) -> Sequence[str]:
        """Return the secrets, the longest first."""
        now = tuple(map(file_stamp, self._files))
        if now != self._seen:
            found = {*self._secrets, *(secret for settings in self._several for secret in secrets_of(settings))}
            self._secrets, self._seen = sorted(found, key=lambda each: (-len(each), each)), now
        return self._secrets


def _password_files(settings: "Settings") -> Iterator[Path]:
    for section in _sections(settings):
        for name, value in getattr(section, "__dict__", {}).items():
            if name.endswith("password_file") and value is not None:
                yield value


def redacted(text: str, secrets: Sequence[str]) -> str:
    """Return a text with *** in the place of each secret, and of what is one by its form: a login or a signature in a URL, the
    headers for logins and cookies, a signed token, a private key.
    """
    for secret in secrets:
        text = text.replace(secret, MASK)
    text = _PRIVATE_KEY.sub(MASK, _LOGIN.sub(rf"\1\3{MASK}@", text))
    text = _PARAMETER.sub(lambda found: found[0].removesuffix(found[1]) + MASK, text)
    return _SIGNED.sub(MASK, _HEADER.sub(rf"\1\2{MASK}", text))


def stripped(text: str, secrets: Sequence[str]) -> str:
    """`redacted`, for texts that leave the machine: also without values that names such as `password=` call secret."""
    return _SPACED.sub(_masked_option, _ASSIGNED.sub(_masked, redacted(text, secrets)))


def is_secret(option: str, value: str) -> bool:
    """Return whether an option of a client library has a secret, by its name or in its value."""
    return _says_secret(option) or has_secret(value)


def has_secret(text: str) -> bool:
    """Return whether a text has what `stripped` takes out without knowing the secrets."""
    return stripped(text, ()) != text


def _says_secret(option: str) -> bool:
    """Whether the value of an option of this name is a secret."""
    return bool(_OPTION.search(option)) and not _PLACE.search(option)


def _masked(assigned: re.Match[str]) -> str:
    """The assignment with *** for its value, in the quotes that it has."""
    name, *quotes = assigned.groups(default="")
    if _PLACE.search(name.rstrip(" =:\"'\\\t")):
        return assigned[0]
    return f"{name}{quotes[0]}{quotes[2]}{MASK}{quotes[1]}{quotes[3]}"


def _masked_option(option: re.Match[str]) -> str:
    """The option with *** for its value, if its name has a dot or begins with --: other names are words of a sentence."""
    before = _BEFORE.search(option.string, max(0, option.start() - 80), option.start())
    name = (before[0] if before else "") + option[1]
    is_option = ("." in name or name.startswith("--")) and not _PLACE.search(name)
    return f"{option[1]}{option[2]}{MASK}" if is_option else option[0]


def file_stamp(file: Path) -> tuple[int, ...]:
    """Return what changes when a file is replaced; of a link that of the file behind it, which Kubernetes replaces."""
    try:
        state = file.stat()
    except OSError:
        return ()
    return state.st_ino, state.st_mtime_ns, state.st_size


def _sections(settings: "Settings") -> Iterator[object]:
    for _, value in settings:
        yield from value if isinstance(value, tuple) else (value,)


def _secrets(settings: "Settings") -> Iterator[str]:
    from service.settings.section import read_secret  # noqa: PLC0415 - a command without settings needs no pydantic

    for section in _sections(settings):
        for name, value in getattr(section, "__dict__", {}).items():
            if hasattr(value, "get_secret_value"):
                yield from _passwords(value.get_secret_value())
                yield from _PARAMETER.findall(value.get_secret_value())
            elif name == "options":
                for key, each in value.items():
                    yield from _of_option(key, str(each))
            elif name == "query":  # of a reference, which may name another database with its login
                yield from _of_option(name, value)
            elif isinstance(value, str) and ":" in value:
                yield from _of_address(value)
            elif name.endswith("password_file") and value is not None:
                try:
                    yield from _passwords(read_secret(value))
                except OSError:
                    continue  # the client that needs the password reports the file


def _of_option(name: str, value: str) -> Iterator[str]:
    """The value of an option whose name says secret, and secrets within the value of any option."""
    if _says_secret(name):
        yield value
        if name.endswith("user.info"):  # user:password
            yield value.partition(":")[2]
    yield from _of_address(value)
    for quoted, single, bare in _WITHIN.findall(value):
        found = quoted or single or bare
        if not _PLAIN.fullmatch(found):
            yield found
            yield re.sub(r"\\(.)", r"\1", quoted)


def _of_address(text: str) -> Iterator[str]:
    for _, password, _, of_oracle in _LOGIN.findall(text):
        yield password or of_oracle
    yield from _PARAMETER.findall(text)


def _passwords(secret: str) -> Iterator[str]:
    """The secret; of a URL only its password."""
    login = re.match(r"[a-z][a-z0-9+]*://(.*)@", secret)
    yield login[1].partition(":")[2] if login is not None else "" if "://" in secret else secret

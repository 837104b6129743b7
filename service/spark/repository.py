"""Fetch the locked jars without Maven: from its local repository, from an offline folder, or by HTTPS.

Each file is compared with its checksum in deploy/jars.lock before it gets its name, so an interrupted or altered download never
counts as a jar.
"""

import base64
import contextlib
import hashlib
import http.client
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit, urlunsplit
from xml.etree import ElementTree

from service.errors import SetupError
from service.spark import jars
from service.spark.jars import Jar
from service.spark.places import user_home

CENTRAL = "https://repo.maven.apache.org/maven2"
VARIABLE = "TIDEMARK_MAVEN_REPOSITORY"
LARGEST = 128 << 20
"""Bytes of one jar at most; the largest one here has 73 MB."""
TRIES = 3
TIMEOUT_S = 30.0
_AT_ONCE = 4
_ELSEWHERE = f"Name a mirror in {VARIABLE}, or use a folder with the jars: tidemark jars --offline FOLDER"
_SCHEMES = ("http", "https", "file")


@dataclass(frozen=True, slots=True)
class Fetched:
    """How many jars of a group are in its folder now, how many of them were there before, and which other versions of them were
    removed."""

    folder: Path
    jars: int
    before: int
    removed: tuple[str, ...] = ()


def fetch(
    group: str,
    root: Path,
    *,
    offline: Path | None = None,
    repository: str | None = None,
    done: Callable[[int, int], object] = lambda _done, _all: None,
) -> Fetched:
    """Fetch the jars of a group into `root`/`group`; files there with the right checksum are kept. Other versions of these jars
    are removed when all are there: both would be on the class path, in the order of their names.

    With `offline` all come from that folder. Else they come from Maven's local repository if it has them, and from `repository`,
    by default `configured`. `done` is called with the number of jars in the folder and of the lock. Raises SetupError with the
    file, its checksum and a remedy.
    """
    wanted = jars.locked(group)
    folder = root / group
    try:
        folder.mkdir(parents=True, exist_ok=True)
        absent = [jar for jar in wanted if _sha256(folder / jar.name) != jar.sha256]
        source = _folder(offline) if offline is not None else _online(repository or configured())
        count = len(wanted) - len(absent)
        done(count, len(wanted))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(lambda jar: _put(jar, folder, source), absent):
                count += 1
                done(count, len(wanted))
        removed = tuple(_remove(each) for each in jars.other_versions(group, folder))
    except OSError as error:
        what = f"The jars cannot be stored in {folder}: {error}"
        raise SetupError(what, remedy="Set TIDEMARK_JARS to a folder that can be written") from error
    return Fetched(folder, len(wanted), len(wanted) - len(absent), removed)


def configured(home: Path | None = None) -> str:
    """Return the repository's address: of TIDEMARK_MAVEN_REPOSITORY, else Maven's mirror of Central, else Central."""
    if given := os.environ.get(VARIABLE):
        return given
    settings = (home or user_home()) / ".m2" / "settings.xml"
    with contextlib.suppress(OSError, ElementTree.ParseError):
        for mirror in ElementTree.parse(settings).iterfind("{*}mirrors/{*}mirror"):  # noqa: S314 - the user's own file
            mirrored = {each.strip() for each in (mirror.findtext("{*}mirrorOf") or "").split(",")}
            url = (mirror.findtext("{*}url") or "").strip()
            if url and mirrored & {"*", "central", "external:*"} and "!central" not in mirrored:
                return url
    return CENTRAL


_Source = Callable[[Jar, BinaryIO], str]
"""Writes a jar to a file, and returns where it came from."""


def _put(jar: Jar, folder: Path, source: _Source) -> None:
    """Write a jar under another name, compare its checksum, and give it its name."""
    handle, name = tempfile.mkstemp(prefix=f".{jar.name}.", dir=folder)
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            origin = source(jar, file)
        if (digest := _sha256(new)) != jar.sha256:
            what = (
                f"{origin}: the file has the SHA-256 {digest}, deploy/jars.lock has {jar.sha256} for {jar.coordinates}"
            )
            raise SetupError(what, remedy="The file is damaged or was replaced. Use another copy: " + _ELSEWHERE)
        new.chmod(0o644)
        new.replace(folder / jar.name)
    finally:
        new.unlink(missing_ok=True)


def _remove(jar: Path) -> str:
    jar.unlink(missing_ok=True)  # another run may have removed it
    return jar.name


def _folder(offline: Path) -> _Source:
    def source(jar: Jar, file: BinaryIO) -> str:
        for place in (offline / jar.group / jar.name, offline / jar.name, offline / jar.path):
            if place.is_file():
                _copy(place, file)
                return str(place)
        what = f"{offline} lacks {jar.name} ({jar.coordinates}, SHA-256 {jar.sha256})"
        command = f"tidemark jars{'' if jar.group == 'spark' else f' --group {jar.group}'} --to {offline}"
        raise SetupError(what, remedy=f"Make the folder on a machine with a connection: {command}")

    return source


def _online(repository: str) -> _Source:
    local = user_home() / ".m2" / "repository"
    address, headers = _split(repository)

    def source(jar: Jar, file: BinaryIO) -> str:
        if _sha256(local / jar.path) == jar.sha256:
            _copy(local / jar.path, file)
            return str(local / jar.path)
        url = f"{address}/{jar.path}"
        for left in reversed(range(TRIES)):
            try:
                file.seek(0)
                file.truncate()
                _download(url, headers, file)
                break
            except (OSError, http.client.HTTPException) as error:
                gone = isinstance(error, urllib.error.HTTPError) and error.code < 500
                if left and not gone:
                    continue
                reason = getattr(error, "reason", None) or str(error) or type(error).__name__
                code = f"{error.code} " if isinstance(error, urllib.error.HTTPError) else ""
                what = f"{url} cannot be fetched: {code}{reason}. Wanted is {jar.coordinates} with the SHA-256 {jar.sha256}"
                raise SetupError(what, remedy=_ELSEWHERE) from error
        return url

    return source


def _download(url: str, headers: Mapping[str, str], file: BinaryIO) -> None:
    request = urllib.request.Request(url)  # noqa: S310 - _split refuses other schemes
    for name, value in headers.items():
        request.add_unredirected_header(name, value)  # a login is for this host only
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - _split refuses other schemes
        for chunk in iter(lambda: answer.read(1 << 16), b""):
            file.write(chunk)
            if file.tell() > LARGEST:
                raise OSError(f"it has more than {LARGEST >> 20} MB")
        # A connection that breaks off is the end of the answer for `read` with a size (Python 3.11).
        promised = answer.headers["Content-Length"]
        if promised is not None and file.tell() < int(promised):
            raise OSError(f"the connection broke off after {file.tell()} of {promised} bytes")


def _split(repository: str) -> tuple[str, dict[str, str]]:
    """Return the address without a login, and the headers that have it."""
    parts = urlsplit(repository)
    if parts.scheme not in _SCHEMES:
        place = repository.rpartition("@")[2].partition("?")[0]  # what is before and behind may be a login
        what = f"The repository {place!r} has no scheme of {', '.join(_SCHEMES)}"
        raise SetupError(what, remedy=f"Name an address such as {CENTRAL} in {VARIABLE}")
    login, _, host = parts.netloc.rpartition("@")
    headers = {"User-Agent": "tidemark"}
    if login:
        headers["Authorization"] = "Basic " + base64.b64encode(unquote(login).encode()).decode()
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")), headers


def _copy(place: Path, file: BinaryIO) -> None:
    with place.open("rb") as content:
        shutil.copyfileobj(content, file)


def _sha256(path: Path) -> str:
    """Return the checksum of a file, "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""

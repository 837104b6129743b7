"""`tidemark support`: one archive for a bug report: settings without secrets, versions, logs, metrics, status, checkpoint, Redis.

Each part is collected by itself: a part that cannot be had is named in about.txt, with the reason. No part has values or ids of
devices, but logs may. Every text goes through service/redaction.py. Nothing is sent anywhere.
"""

import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from redis.exceptions import RedisError

from service import clock
from service.errors import SettingsError, SetupError
from service.monitoring import pages
from service.monitoring.pages import NoServiceError
from service.redaction import MASK, redacted, secrets_of, stripped
from service.redis import client as redis_client
from service.redis.keys import shards
from service.settings import Settings
from service.spark import java

SHOWN_OPTIONS = frozenset(
    {"security.protocol", "sasl.mechanism", "sasl.mechanisms", "client.id", "client.rack", "isolation.level"}
)
"""Options of client libraries whose values are in the archive; of others only the names are."""
LOG_BYTES = 4 << 20
"""Of each log, from its end."""
SETTINGS = "settings.json"
_SERVER = (
    "redis_version",
    "role",
    "used_memory",
    "maxmemory",
    "maxmemory_policy",
    "connected_clients",
    "uptime_in_seconds",
)

Part = Callable[[], str]


def support(settings: Settings, out: Path, logs: Sequence[Path], say: Callable[[str], object]) -> None:
    """Write the archive, for its owner's eyes. Raises SettingsError if the file exists, SetupError if it cannot be written."""
    secrets = secrets_of(settings)
    texts: dict[str, str] = {}
    lacking: dict[str, str] = {}
    for name, part in _parts(settings, logs):
        try:
            # Of the settings each value was stripped by itself: a measure may be named like a secret.
            texts[name] = redacted(part(), secrets) if name == SETTINGS else stripped(part(), secrets)
        except (OSError, ValueError, RedisError, NoServiceError, subprocess.SubprocessError) as error:
            lacking[name] = stripped(str(error) or type(error).__name__, secrets)
    texts["about.txt"] = _about(texts, lacking)
    _write(out, texts)
    for name, reason in lacking.items():
        say(f"without {name}: {reason}")
    if not logs:
        say("without a log: add one with --log FILE, or `journalctl -u tidemark | tidemark support --log -`")
    say(f"written to {out}. Look through it before you send it: logs may name devices")


def _parts(settings: Settings, logs: Sequence[Path]) -> Iterator[tuple[str, Part]]:
    yield SETTINGS, lambda: _json(shown(settings))
    yield "versions.json", lambda: _json(versions())
    for name in ("status.json", "conditions.json", "readyz.json", "metrics.txt"):
        path = f"/{name.partition('.')[0]}"
        yield name, lambda path=path: pages.fetch(settings.metrics, path)[1].decode("utf-8", "replace")  # type: ignore[misc]
    yield "checkpoint.json", lambda: _json(checkpoint(settings))
    yield "redis.json", lambda: _json(redis(settings))
    for number, log in enumerate(logs, 1):
        yield f"logs/{number}-{'stdin' if str(log) == '-' else log.name}", lambda log=log: tail(log)  # type: ignore[misc]


def shown(settings: Settings) -> dict[str, Any]:
    """Return the settings in effect, durations in ms, without secrets: an address has no login, an option only its name."""
    document = settings.model_dump(mode="json")
    document["redis"]["url"] = redis_client.address(settings.redis)
    for section in (document["kafka"], document["registry"], *document["outlets"]):
        if section is not None and "options" in section:
            options = section["options"]
            section["options"] = {key: value if key in SHOWN_OPTIONS else MASK for key, value in options.items()}
    reference = document["reference"]
    if reference is not None:
        from service.reference.database import address  # noqa: PLC0415 - it loads Spark's Python package

        reference["url"] = address(reference["url"])
    return {name: _without_secrets(value) for name, value in document.items()}


def _without_secrets(value: Any) -> Any:
    """Return a value of a document with each text in it stripped."""
    if isinstance(value, dict):
        return {name: _without_secrets(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    return stripped(value, ()) if isinstance(value, str) else value


def versions() -> dict[str, Any]:
    """Return the versions of all that runs, and the size of the machine."""
    return {
        "python": sys.version,
        "system": platform.platform(),
        "java": _java(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "packages": {each.name: each.version for each in metadata.distributions()},
        "environment": sorted(name for name in os.environ if name.startswith(("TIDEMARK_", "SPARK_", "JAVA_HOME"))),
    }


def checkpoint(settings: Settings) -> dict[str, Any]:
    """Return the manifest and the number and bytes of files by folder. Raises ValueError if it is on another file system."""
    from service.checkpoint import manifest  # noqa: PLC0415 - it loads Spark's Python package
    from service.spark.files import Local, local  # noqa: PLC0415

    root = local(settings.service.checkpoint)
    if root is None:
        raise ValueError("the checkpoint is not on this machine; `tidemark checkpoint show` prints its manifest")
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    files = Local(root)
    folders: dict[str, list[int]] = {}
    for file in files.walk():
        sizes = folders.setdefault(file.name.split("/")[0] if "/" in file.name else ".", [0, 0])
        sizes[0] += 1
        sizes[1] += file.size
    try:
        text = files.read(manifest.NAME).decode("utf-8", "replace")
        made_with: Any = json.loads(text)
    except (OSError, ValueError) as error:
        made_with = f"cannot be read: {error}"
    return {
        "root": str(root),
        "free_bytes": shutil.disk_usage(root).free,
        "manifest": made_with,
        "folders": {name: {"files": files, "bytes": size} for name, (files, size) in sorted(folders.items())},
    }


def redis(settings: Settings) -> list[dict[str, Any]]:
    """Return meta, progress, the epoch and figures of the server, of each shard. Raises RedisError."""
    stores = []
    for keys in shards(settings.redis):
        with redis_client.client(
            settings.redis, keys, decode_responses=True, encoding_errors="backslashreplace"
        ) as client:
            server = client.info()
            stores.append(
                {
                    "shard": keys.prefix,
                    "server": {name: server[name] for name in _SERVER if name in server},
                    "keys": client.dbsize(),
                    "meta": client.get(keys.meta),
                    "progress": client.hgetall(keys.progress),
                    "epoch": client.get(keys.epoch),
                    "republish": client.get(keys.republish),
                }
            )
    return stores


def tail(log: Path) -> str:
    """Return the end of a log, from the beginning of a line; "-" is standard input."""
    if str(log) == "-":
        size, content = 0, b""
        while some := sys.stdin.buffer.read(1 << 20):
            size, content = size + len(some), (content + some)[-LOG_BYTES:]
    else:
        size = log.stat().st_size
        with log.open("rb") as file:
            file.seek(max(0, size - LOG_BYTES))
            content = file.read(LOG_BYTES)
    text = content.decode("utf-8", "replace")
    return text if size <= LOG_BYTES else text.partition("\n")[2]


def _java() -> str:
    """Return what `java -version` prints."""
    try:
        return subprocess.run(  # noqa: S603 - the program that Spark's own scripts run
            [java.java(), "-version"], capture_output=True, text=True, timeout=30, check=False
        ).stderr.strip()
    except (SetupError, OSError, subprocess.SubprocessError) as error:
        return str(error)


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, default=str) + "\n"


def _about(texts: Mapping[str, str], lacking: Mapping[str, str]) -> str:
    lines = [
        "A support archive of Tidemark: settings without secrets, versions, what the service, its checkpoint and Redis say.",
        "It has no values of devices. Logs may have ids of devices and parts of records that were rejected.",
        f"Secrets of the settings, logins in URLs and values that are named like secrets are replaced by {MASK}.",
        "",
        *(f"{name}: {len(text.encode())} bytes" for name, text in texts.items()),
        *(f"{name}: not there: {reason}" for name, reason in lacking.items()),
    ]
    return "\n".join(lines) + "\n"


def _write(out: Path, texts: Mapping[str, str]) -> None:
    folder = out.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in sorted(texts.items()):
            content = text.encode("utf-8", "backslashreplace")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), clock.now_ms() // 1000, 0o600
            archive.addfile(entry, io.BytesIO(content))
    try:
        with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(buffer.getvalue())
    except FileExistsError as error:
        raise SettingsError(f"{out} is there already", remedy="Name another file with --out") from error
    except OSError as error:
        what = f"{out} cannot be written ({error.strerror})"
        raise SetupError(what, remedy="Name another file with --out") from error


def default_name() -> str:
    """Return the name of an archive that is made now."""
    return time.strftime("tidemark-support-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime(clock.now_ms() / 1000))

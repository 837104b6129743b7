"""What the Spark session is told that depends on the machine."""

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from uuid import uuid4

import pytest

from service.errors import SettingsError
from service.spark import java
from service.spark.session import (
    LONGEST_FOLDER,
    TASKS,
    UNIX_SOCKETS,
    cores_at_start,
    master_of,
    parallelism,
    unix_sockets,
    warn_of_noexec,
)

BIND = """
import java.net.*; import java.nio.channels.*; import java.nio.file.*;
public class Bind {
    public static void main(String[] paths) throws Exception {
        for (String path : paths)
            try (var server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
                server.bind(UnixDomainSocketAddress.of(path));
                System.out.println("bound");
            } catch (java.io.IOException error) {
                System.out.println(error.getMessage());
            }
    }
}
"""


def test_workers_are_on_unix_sockets_where_java_takes_their_paths() -> None:
    with TemporaryDirectory(dir="/tmp") as short:
        program = Path(short, "Bind.java")
        program.write_text(BIND)
        folders = [Path(short, "x" * (length - len(short) - 1)) for length in (LONGEST_FOLDER, LONGEST_FOLDER + 1)]
        for folder in folders:
            folder.mkdir()
        assert [unix_sockets(str(folder)) for folder in folders] == [{UNIX_SOCKETS: "true"}, {}]
        paths = [f"{folder}/.{uuid4()}.sock" for folder in folders]
        done = subprocess.run([java.java(), str(program), *paths], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["bound", "Unix domain path too long"]


def test_a_path_is_measured_in_bytes() -> None:
    assert unix_sockets("/" + "\u00e9" * ((LONGEST_FOLDER - 1) // 2)) == {UNIX_SOCKETS: "true"}
    assert unix_sockets("/" + "\u00e9" * LONGEST_FOLDER) == {}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"spark.master": "spark://a:7077", "spark.cores.max": "8"}, {"spark.default.parallelism": "8"}),
        ({"spark.master": "spark://a:7077"}, {}),  # all the cluster has, which nobody knows before it gives them
        ({"spark.master": "local[2]", "spark.cores.max": "8"}, {}),
        ({"spark.cores.max": "8"}, {}),
    ],
)
def test_tasks_are_as_many_as_the_cores_asked_for(given: dict[str, str], wanted: dict[str, str]) -> None:
    assert parallelism(given) == wanted


@pytest.mark.parametrize(
    ("more", "cores"),
    [
        ({}, 8),
        ({"enabled": "false", "minExecutors": "1"}, 8),
        ({"enabled": "true"}, 0),
        ({"enabled": "true", "minExecutors": "1"}, 2),
        ({"enabled": "true", "minExecutors": "1", "initialExecutors": "3"}, 6),
        ({"enabled": "true", "initialExecutors": "9"}, 8),
    ],
)
def test_a_start_waits_for_the_first_executors_where_more_come_with_the_load(more: dict[str, str], cores: int) -> None:
    given = {"spark.master": "spark://a:7077", "spark.cores.max": "8", "spark.executor.cores": "2"}
    given |= {f"spark.dynamicAllocation.{name}": value for name, value in more.items()}
    assert cores_at_start(given.get) == cores
    assert parallelism(given) == {"spark.default.parallelism": "8"}, "tasks that wait are what asks for executors"


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, "spark://a:7077"),
        ({TASKS: "executors", "spark.driver.cores": "3"}, "spark://a:7077"),
        ({TASKS: "driver", "spark.driver.cores": "3"}, "local[3]"),
        ({TASKS: "driver"}, "local[1]"),  # what Spark gives a driver of which nothing is said
    ],
)
def test_a_driver_does_its_tasks_itself_where_it_is_told_to(more: dict[str, str], wanted: str) -> None:
    assert master_of({"spark.master": "spark://a:7077", **more}) == wanted


def test_where_tasks_are_done_is_said_in_one_of_two_words() -> None:
    with pytest.raises(SettingsError, match=r"spark\.tidemark\.tasks = 'local' is neither `executors` nor `driver`"):
        master_of({TASKS: "local"})


def test_a_temporary_folder_from_which_no_library_can_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flags = 0
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_flag=flags))
    warn_of_noexec(str(tmp_path))
    assert not caplog.messages
    flags = os.ST_NOEXEC
    warn_of_noexec(str(tmp_path))
    assert f"{tmp_path} is mounted with noexec" in caplog.text
    assert "-Djava.io.tmpdir=" in caplog.text

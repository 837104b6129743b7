"""Whether the holder of a lease is provably gone; the processes are real."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from service.daemon import owner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can say that a process is gone")


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that lives, and the name it gave itself."""
    program = "from service.daemon import owner; print(owner.here(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


def test_one_that_lives_is_not_gone_even_when_it_is_frozen(other: tuple[subprocess.Popen[str], str]) -> None:
    process, name = other
    assert not owner.is_gone(name)
    assert not owner.is_gone(owner.here())
    os.kill(process.pid, signal.SIGSTOP)
    assert not owner.is_gone(name)


def test_a_killed_process_is_gone_also_as_a_zombie(other: tuple[subprocess.Popen[str], str]) -> None:
    process, name = other
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
    assert owner.is_gone(name)
    process.wait()
    assert owner.is_gone(name)


def test_a_number_that_was_given_again_is_another_process() -> None:
    host, pid, start, machine = owner.here().split(":")
    assert owner.is_gone(f"{host}:{pid}:{int(start) - 1}:{machine}")


@pytest.mark.parametrize("elsewhere", ["host:1:1:0badcafe", "host:1:1:", "host:1", "host", "", "host:x:1:0badcafe"])
def test_nothing_is_known_of_another_system_or_another_form(elsewhere: str) -> None:
    assert not owner.is_gone(elsewhere)

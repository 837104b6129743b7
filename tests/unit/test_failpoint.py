"""Crash points: they fire once, at the hit that was asked for, and never outside of tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.errors import SettingsError
from service.failpoint import InjectedError, Plan

TEST = {"TIDEMARK_TEST": "1"}


def plan(point: str, **more: str) -> Plan:
    made = Plan.of({**TEST, "TIDEMARK_FAILPOINT": point, **more})
    assert made is not None
    return made


def test_only_the_nth_hit_of_its_own_name_raises() -> None:
    armed = plan("after_decode:2:raise")
    armed.hit("before_fetch")
    armed.hit("after_decode")
    with pytest.raises(InjectedError, match="after_decode"):
        armed.hit("after_decode")
    armed.hit("after_decode")


def test_what_has_fired_in_an_earlier_process_does_not_fire_again(tmp_path: Path) -> None:
    fired = tmp_path / "fired"
    with pytest.raises(InjectedError):
        plan("after_commit:1:raise", TIDEMARK_FAILPOINT_FIRED=str(fired)).hit("after_commit")
    assert fired.exists()
    plan("after_commit:1:raise", TIDEMARK_FAILPOINT_FIRED=str(fired)).hit("after_commit")


def test_several_points_fire_in_order_over_several_processes(tmp_path: Path) -> None:
    more = {"TIDEMARK_FAILPOINT_FIRED": str(tmp_path / "fired")}
    points = "after_decode:1:raise,before_fetch:2:raise,after_commit:1:raise"
    first = plan(points, **more)
    first.hit("before_fetch")  # not its turn: does not count either
    with pytest.raises(InjectedError, match="after_decode"):
        first.hit("after_decode")
    first.hit("before_fetch")
    second = plan(points, **more)
    second.hit("after_decode")
    second.hit("before_fetch")
    with pytest.raises(InjectedError, match="before_fetch"):
        second.hit("before_fetch")
    assert (tmp_path / "fired").read_text().splitlines() == ["after_decode:1:raise", "before_fetch:2:raise"]
    with pytest.raises(InjectedError, match="after_commit"):
        second.hit("after_commit")
    for name in ("after_decode", "before_fetch", "after_commit"):
        plan(points, **more).hit(name)


@pytest.mark.parametrize("environment", [{}, {"TIDEMARK_FAILPOINT": "half_publish:1"}, TEST])
def test_without_the_switch_or_a_point_there_is_no_plan(environment: dict[str, str]) -> None:
    assert Plan.of(environment) is None


@pytest.mark.parametrize(
    "text", ["half_publish", "half_publish:0", "nowhere:1", "half_publish:1:stop", "a:1:kill:x", "half_publish:1,"]
)
def test_a_point_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="name:nth"):
        plan(text)


def test_a_kill_cannot_be_caught_and_leaves_its_mark(tmp_path: Path) -> None:
    program = "from service import failpoint\ntry:\n    failpoint.hit('half_publish')\nfinally:\n    print('went on')"
    fired = tmp_path / "fired"
    point = {**TEST, "TIDEMARK_FAILPOINT": "half_publish:1", "TIDEMARK_FAILPOINT_FIRED": str(fired)}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env={**os.environ, **point}, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "")
    assert fired.exists()
    again = subprocess.run(command, env={**os.environ, **point}, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (0, "went on\n"), again.stderr

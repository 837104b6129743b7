"""The one clock: the machine's, but for tests that set one."""

import time
from pathlib import Path

import pytest

from service import clock
from service.clock import Steady


def test_the_clock_is_the_machine_s() -> None:
    assert abs(clock.now_ms() - time.time() * 1000) < 60_000


@pytest.mark.parametrize("environment", [{}, {"TIDEMARK_CLOCK": "clock"}, {"TIDEMARK_TEST": "1"}])
def test_outside_of_tests_no_file_is_the_clock(environment: dict[str, str]) -> None:
    assert clock.file_of(environment) is None


def test_in_tests_the_clock_is_what_a_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "clock"
    monkeypatch.setattr(clock, "_file", clock.file_of({"TIDEMARK_TEST": "1", "TIDEMARK_CLOCK": str(file)}))
    for now in ("2208988800000", "2208988800001"):
        file.write_text(now)
        assert str(clock.now_ms()) == now


class Machine:
    """A wall clock that can be set, and the seconds since the start."""

    def __init__(self) -> None:
        self.wall_ms, self.elapsed_s = 1_790_000_000_000, 100.0

    def passes(self, seconds: float) -> None:
        self.wall_ms += round(seconds * 1000)
        self.elapsed_s += seconds


@pytest.mark.silent("1.5")
def test_a_clock_that_is_set_back_goes_on_and_one_that_is_set_forward_is_followed() -> None:
    machine = Machine()
    steady = Steady(lambda: machine.wall_ms, lambda: machine.elapsed_s)
    first = steady()
    assert first == machine.wall_ms
    machine.wall_ms -= 3_600_000
    machine.passes(10)
    assert steady() == first + 10_000
    machine.passes(3_600)
    assert steady() == first + 3_610_000
    machine.wall_ms += 2 * 3_600_000
    assert steady() == machine.wall_ms == first + 3_610_000 + 3_600_000

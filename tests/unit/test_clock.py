"""The one clock: the machine's, but for tests that set one."""

import time
from pathlib import Path

import pytest

from service import clock


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

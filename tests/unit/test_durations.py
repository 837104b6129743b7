"""The lines about files of tests that take longer than before."""

from tests import durations


def test_only_tests_of_both_runs_count() -> None:
    before = {"a.py::test_1": 2.0, "a.py::test_2": 1.0, "b.py::test_1": 5.0, "c.py::test_1": 3.0}
    after = {"a.py::test_1": 4.5, "a.py::test_3": 9.0, "b.py::test_1": 5.5, "c.py::test_1": 1.0}
    assert durations.growth(before, after) == ["    4.5 s  +2.5 s  a.py"]

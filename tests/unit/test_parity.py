"""Comparing closed values: what is missing, there again, and different; sums may differ by their rounding."""

from typing import Any

import pytest

from load.parity.values import differences, duplicates, missing

KEY = ("device", "temperature", "d1", "0")
ROW = {"count": 3, "sum": 60.3, "mean": 20.1, "min": 20.0, "max": 20.2}


def counts(right: Any, actual: Any) -> tuple[int, int, int]:
    return len(missing(right, actual)), len(duplicates(right, actual)), len(differences(right, actual))


@pytest.mark.parametrize(
    ("actual", "found"),
    [
        ({KEY: ROW}, (0, 0, 0)),
        ({KEY: {**ROW, "sum": 60.300000000000004, "mean": 20.100000000000001}}, (0, 0, 0)),
        ({KEY: {**ROW, "sum": "60.300000000000004"}}, (0, 0, 0)),
        ({KEY: {**ROW, "sum": 60.3001}}, (0, 0, 1)),
        ({KEY: {**ROW, "max": 20.200000000000003}}, (0, 0, 1)),
        ({KEY: {**ROW, "sum": None}}, (0, 0, 1)),
        ({KEY: {**ROW, "p95": 20.0}}, (0, 0, 1)),
        ({}, (1, 0, 0)),
        ({KEY: ROW, (*KEY, "row 2"): ROW}, (0, 1, 0)),
        ({KEY: ROW, ("device", "temperature", "d2", "0"): ROW}, (0, 0, 1)),
    ],
)
def test_what_is_missing_twice_or_different_is_counted(actual: Any, found: tuple[int, int, int]) -> None:
    assert counts({KEY: ROW}, actual) == found

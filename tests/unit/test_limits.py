"""Limits of a device's own: what they may be written as, and what is no limit."""

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from service.errors import ReferenceDataError
from service.reference import snapshots
from service.reference.limits import durations_ms, faults
from service.settings import Reference


def reference(**changes: Any) -> Reference:
    return Reference(**{"url": "jdbc:sqlite:x", "query": "q", **changes})


def table(**columns: list[str | None]) -> pa.Table:
    size = len(next(iter(columns.values())))
    given = {name: pa.array(values, pa.string()) for name, values in columns.items()}
    return pa.table({"device": [f"d{n}" for n in range(size)], **given})


def test_a_duration_has_a_unit_or_is_in_milliseconds_and_null_is_none() -> None:
    column = pa.chunked_array([pa.array(["30 s", "1500", None]), pa.array(["2 m", "30 s"])])
    assert durations_ms(column, -1).tolist() == [30_000, 1_500, -1, 120_000, 30_000]
    assert durations_ms(pa.array([None, None], pa.string()), 7).tolist() == [7, 7]
    assert durations_ms(pa.array([], pa.string()), 7).tolist() == []


@pytest.mark.parametrize(
    "change", [{"session_gap": "gap"}, {"expected_interval": "gap"}, {"ranges": {"t": ("low", "gap")}}]
)
def test_data_that_has_not_changed_is_validated_again_when_a_column_becomes_a_limit(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "fetch", lambda *_: table(gap=["30 s", "soon"], low=["1", "2"]))
    spark: Any = None
    snapshots.load(spark, reference(), tmp_path)
    for fresh_ms in (0, 60_000):
        with pytest.raises(ReferenceDataError, match=r"gap: must be a .* such as .*'soon'"):
            snapshots.load(spark, reference(**change), tmp_path, fresh_ms=fresh_ms)


@pytest.mark.parametrize("text", ["0", "-5", "0 s", "soon", "", "5 parsecs", "400 d", "1.5", "9" * 5000])
def test_what_is_no_duration_is_named_and_none_in_a_snapshot_of_before_the_setting(text: str) -> None:
    problems = list(faults(table(gap=["30 s", text, None]), reference(session_gap="gap")))
    assert problems == [
        f"gap: must be a duration above 0, such as '30 s' or 30000 (ms): 1 values are not, such as {text!r}"
    ]
    assert durations_ms(pa.array(["30 s", text]), -1).tolist() == [30_000, -1]


@pytest.mark.parametrize("text", ["cold", "nan", "inf", "1e200", "-1.001e140", "", "1_000", "٣", "\u00a05"])
def test_what_is_no_number_is_named(text: str) -> None:
    settings = reference(ranges={"t": ("low", "high")})
    (problem,) = faults(table(low=["1", text], high=["2", None]), settings)
    assert problem.startswith("low: must be a number from -1e+140 to 1e+140: ")
    assert repr(text) in problem


def test_a_range_whose_ends_are_crossed_is_named_with_its_devices() -> None:
    settings = reference(ranges={"t": ("low", "high")})
    (problem,) = faults(table(low=["1", "3", None, "5"], high=["1", "2", "0", None]), settings)
    assert problem == "low: must not be above high (t); of 1 devices it is, such as device 'd1' (3 to 2)"


def test_limits_that_are_limits_have_no_faults() -> None:
    settings = reference(ranges={"t": ("low", "high")}, session_gap="gap", expected_interval="every")
    good = table(low=["-1e3", None], high=["1", "2"], gap=["1 h", None], every=["5000", "7 s"])
    assert list(faults(good, settings)) == []
    assert list(faults(table(low=["x"]), reference())) == []
    assert settings.limit_columns == ("low", "high", "gap", "every")


def test_a_snapshot_of_the_version_before_is_kept_unless_columns_have_limits() -> None:
    """Data of settings with limits is validated anew: 0.4.0 did not validate a column that became one."""
    query = "jdbc:sqlite:x\0q\0device_id\0site"
    of_before = hashlib.sha256(query.encode() + b"\0").hexdigest().encode()
    assert snapshots._source(reference(key="device_id", columns=["site"])) == of_before
    assert snapshots._source(reference(key="device_id", columns=["site"], session_gap="gap")) != of_before

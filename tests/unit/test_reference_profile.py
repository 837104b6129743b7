"""Expectations that `tidemark profile --reference` draws accept the reference, and refuse one that has changed its nature."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from service.errors import ReferenceDataError, SettingsError
from service.quality import reference_profile, suite
from service.quality.reference_profile import draw
from service.reference import expectations
from service.settings import Reference
from tests import minimal
from tests.unit.test_expectations import refusal

SITES = ["cork", "leeds", "ghent"]


def reference(path: Path | None = None, **more: Any) -> Reference:
    return Reference(url="jdbc:sqlite:/nowhere.db", query="q", key="serial", expectations=path, **more)


def devices(count: int, **columns: list[str | None]) -> pa.Table:
    """Pumps with a site of three, a model of their own, and a note that most of them lack."""
    table: dict[str, list[str | None]] = {
        "device": [f"pump-{n:05}" for n in range(count)],
        "site": [SITES[n % 3] for n in range(count)],
        "model": [f"PX-{n}" for n in range(count)],
        "note": [None if n % 3 else f"höhe {n}\nbei {chr(97 + n % 26)}!" for n in range(count)],
        "nothing": [None] * count,
    }
    return pa.table({name: pa.array(values, pa.string()) for name, values in {**table, **columns}.items()})


def drawn(folder: Path, table: pa.Table, **more: Any) -> Reference:
    """The reference with the expectations of a table."""
    path = folder / "reference.expectations.json"
    suite.write(path, draw(table, reference(**more)), replace=True)
    return reference(path, **more)


def test_what_is_drawn_accepts_the_reference_and_its_growth(tmp_path: Path) -> None:
    settings = drawn(tmp_path, devices(60))
    expectations.validate(devices(60), settings)
    expectations.validate(devices(90), settings)
    expectations.validate(devices(100, site=["new york" if n % 20 == 0 else "cork" for n in range(100)]), settings)


@pytest.mark.parametrize("count", [1, 2, 29, 400])
def test_what_is_drawn_accepts_references_of_any_size(tmp_path: Path, count: int) -> None:
    expectations.validate(devices(count), drawn(tmp_path, devices(count)))


@pytest.mark.parametrize("text", ["", "0", "a\nb", "$^[", "\\", "日本", "'; drop", "x" * 5_000])
def test_what_is_drawn_accepts_odd_texts(tmp_path: Path, text: str) -> None:
    some: list[str | None] = [text, *(f"{text}{chr(97 + n % 26)}-{n}" for n in range(39))]
    table = devices(40, site=[text] * 40, model=some)
    expectations.validate(table, drawn(tmp_path, table))


def test_what_has_changed_its_nature_is_refused(tmp_path: Path) -> None:
    settings = drawn(tmp_path, devices(60))
    assert "table: expect_table_row_count_to_be_between (min_value 30)" in refusal(devices(29), settings)
    text = refusal(devices(60, device=[f"{n}" for n in range(60)]), settings)
    assert 'serial: expect_column_values_to_match_regex (mostly 0.99, regex "^pump-[0-9]+$"' in text
    assert "such as '0', '1'" in text
    assert "site: expect_column_values_to_be_in_set" in refusal(devices(60, site=["x", "cork"] * 30), settings)
    assert "site: expect_column_values_to_not_be_null" in refusal(devices(60, site=[None, "cork"] * 30), settings)
    assert "model: expect_column_values_to_match_regex" in refusal(devices(60, model=["PX"] * 60), settings)


def test_limits_of_devices_are_left_to_their_own_check() -> None:
    table = devices(60, gap=["30 s"] * 60)
    items = draw(table, reference(session_gap="gap"))["expectations"]
    assert {item["kwargs"].get("column") for item in items} == {None, "serial", "site", "model", "note"}


def test_the_same_rows_give_the_same_suite_in_any_order() -> None:
    assert draw(devices(60), reference()) == draw(devices(60).take(list(reversed(range(60)))), reference())


def test_without_a_file_only_keys_are_checked() -> None:
    expectations.validate(devices(3, site=[None, "", "x"]), reference())
    text = refusal(devices(3, device=["a", "a", " "]), reference())
    assert "serial: a key must not be null or blank: 1 of 3 rows have none" in text
    assert "serial: a key must be unique: 1 are not, such as 'a'" in text
    assert text.endswith("Correct the data of [reference] query")


def test_nothing_is_drawn_from_what_is_always_refused() -> None:
    with pytest.raises(ReferenceDataError, match="returns no rows"):
        draw(devices(0), reference())
    with pytest.raises(ReferenceDataError, match="serial: a key must be unique: 1 are not, such as 'a'"):
        draw(devices(2, device=["a", "a"]), reference())


def test_settings_without_a_reference_are_refused(tmp_path: Path) -> None:
    settings = minimal.settings(service={"checkpoint": str(tmp_path)})
    with pytest.raises(SettingsError, match=r"there is no \[reference\] in the settings"):
        reference_profile.profile(settings, tmp_path / "x.json", print)


def test_a_suite_goes_into_the_folder_schemas_where_there_is_one(tmp_path: Path) -> None:
    assert suite.default_place(tmp_path, "x.json") == tmp_path / "x.json"
    (tmp_path / "schemas").mkdir()
    inside = suite.hint("reference", tmp_path, tmp_path / "schemas" / "x.json")
    assert inside == 'To use it, set expectations = "schemas/x.json" in [reference], and restart'
    assert f'"{tmp_path}/x.json" in [quality]' in suite.hint("quality", tmp_path / "away", tmp_path / "x.json")
    assert suite.default_place(tmp_path, "x.json") == tmp_path / "schemas" / "x.json"

"""What reference data is refused for, and whether the message suffices to mend it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from service.errors import ReferenceDataError, SchemaError
from service.reference import expectations
from service.settings import Reference

DEMO = Path(__file__).parents[2] / "schemas" / "reference.expectations.json"


def reference(suite: Path = DEMO, **settings: Any) -> Reference:
    return Reference(url="jdbc:sqlite:/nowhere.db", query="select 1", expectations=suite, **settings)


def written(folder: Path, *items: object) -> Path:
    path = folder / "suite.json"
    path.write_text(json.dumps({"name": "test", "expectations": items}), encoding="utf-8")
    return path


def expect(kind: str, **kwargs: object) -> dict[str, object]:
    return {"type": f"expect_{kind}", "kwargs": kwargs}


HALF = expect(
    "column_kl_divergence_to_be_less_than",
    column="type",
    partition_object={"values": ["pump"], "weights": [0.5]},
    threshold=0.1,
)
"""An expectation whose weights are not 1 in all: Great Expectations raises an error when it is evaluated."""


def devices(*ids: str | None, **columns: list[str | None]) -> pa.Table:
    """The demo's reference; a column that is not given has a good value for each device."""
    good = {"type": "pump", "site": "leeds", "model": "PX-40", "installed": "2025-03-01"}
    values = {name: columns.get(name) or [value] * len(ids) for name, value in good.items()}
    return pa.table({"device": pa.array(ids, pa.string()), **{k: pa.array(v, pa.string()) for k, v in values.items()}})


def refusal(table: pa.Table, settings: Reference) -> str:
    with pytest.raises(ReferenceDataError) as caught:
        expectations.validate(table, settings)
    return str(caught.value)


def test_the_demo_s_suite_takes_the_demo_s_devices() -> None:
    expectations.validate(devices("pump-000001", "pump-000002"), reference())


def test_the_demo_s_suite_refuses_an_empty_reference() -> None:
    text = refusal(devices(), reference())
    assert "table: expect_table_row_count_to_be_between (min_value 1" in text
    assert "observed 0" in text


def test_every_failure_is_named_in_one_message() -> None:
    table = devices(
        "a", "b", "c", "d", site=["leeds", None, "../etc", "ghent"], type=["pump", "Pump 1", "pump", "pump"]
    )
    text = refusal(table, reference())
    assert "the reference data has 3 faults" in text
    assert 'type: expect_column_values_to_match_regex (regex "^[a-z]' in text
    assert "1 of 4 values are not so, such as 'Pump 1'" in text
    assert "site: expect_column_values_to_not_be_null: 1 of 4 values are not so, such as null" in text
    assert "1 of 4 values are not so, such as '../etc'" in text
    assert str(DEMO) in text


@pytest.mark.parametrize("key", ["", "  ", "\t", None])
def test_a_row_without_a_key_is_refused_whatever_the_suite_says(tmp_path: Path, key: str | None) -> None:
    text = refusal(devices("a", key), reference(written(tmp_path)))
    assert "device_id: a key must not be null or blank: 1 of 2 rows have none" in text


def test_a_key_that_is_there_twice_is_refused_whatever_the_suite_says(tmp_path: Path) -> None:
    ids = [f"d{i}" for i in range(8)]
    text = refusal(devices(*ids, *ids, "x"), reference(written(tmp_path), key="serial"))
    assert "serial: a key must be unique: 8 are not, such as 'd0', 'd1', 'd2', 'd3', 'd4'" in text
    assert "d5" not in text


def test_an_empty_suite_refuses_nothing_whatever_its_name(tmp_path: Path) -> None:
    suite = written(tmp_path)
    for name in ("test", ""):
        suite.write_text(json.dumps({"name": name, "expectations": []}))
        expectations.validate(devices("a", type=["anything at all"]), reference(suite))


def test_the_suite_speaks_the_query_s_column_names(tmp_path: Path) -> None:
    suite = written(tmp_path, expect("column_values_to_match_regex", column="serial", regex="^S"))
    expectations.validate(devices("S1"), reference(suite, key="serial"))
    assert "serial: expect_column_values_to_match_regex" in refusal(devices("X1"), reference(suite, key="serial"))


def test_at_most_five_different_examples_are_shown_and_long_ones_are_cut(tmp_path: Path) -> None:
    suite = written(tmp_path, expect("column_values_to_match_regex", column="site", regex="^ok$"))
    sites: list[str | None] = ["same", "same", "x" * 500, "s3", "s4", "s5", "s6"]
    text = refusal(devices(*"abcdefg", site=sites), reference(suite))
    assert "7 of 7 values are not so, such as 'same', 'xxx" in text
    assert "'s5'" in text
    assert "'s6'" not in text
    assert "x" * 100 not in text


def test_an_expectation_that_cannot_be_evaluated_is_a_failure(tmp_path: Path) -> None:
    suite = written(
        tmp_path,
        expect("column_values_to_not_be_null", column="serial"),
        expect("column_values_to_be_between", column="site", min_value=3),
    )
    text = refusal(devices("a"), reference(suite))
    assert "serial: expect_column_values_to_not_be_null: cannot be evaluated" in text
    assert "site: expect_column_values_to_be_between (min_value 3" in text


@pytest.mark.parametrize(
    ("item", "named"),
    [
        (expect("column_values_to_be_lovely", column="site"), "expect_column_values_to_be_lovely not found"),
        (expect("column_values_to_be_unique", colum="site"), "colum extra fields not permitted"),
        ({"kwargs": {}}, "no type"),
        ("site", "not an object"),
    ],
)
def test_an_unknown_expectation_does_not_hold(tmp_path: Path, item: object, named: str) -> None:
    suite = written(tmp_path, expect("table_row_count_to_be_between", min_value=1), item)
    with pytest.raises(SchemaError) as caught:
        expectations.validate(devices("a"), reference(suite))
    assert named in str(caught.value)
    assert "expectations[1]" in str(caught.value)
    assert str(suite) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "cannot be read (No such file"),
        ("{", "is not JSON"),
        ("[]", 'a list "expectations"'),
        (json.dumps({"expectations": [HALF]}), "an expectation cannot be evaluated: Invalid partition_object"),
    ],
)
def test_a_suite_that_is_no_suite_is_named(tmp_path: Path, text: str | None, named: str) -> None:
    path = tmp_path / "suite.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(SchemaError) as caught:
        expectations.validate(devices("a"), reference(path))
    assert named in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "settings", "named"),
    [
        (["id", "site"], {}, "key 'device_id' is not among them"),
        (["device_id", "site"], {"columns": ("site", "type")}, "columns: 'type' is not among them"),
        (["device_id", "site", "Site"], {}, "'site' is there more than once"),
        (["device_id", "device"], {}, "'device' is a name of our own"),
        (["device_id", "Known"], {}, "'Known' is a name of our own"),
        (["device_id", "site.name"], {}, "'site.name' cannot be used"),
    ],
)
def test_columns_that_do_not_fit_are_named(columns: list[str], settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ReferenceDataError) as caught:
        expectations.check_columns(columns, reference(**settings), "jdbc:sqlite:/x.db")
    assert named in str(caught.value)
    assert "jdbc:sqlite:/x.db" in str(caught.value)
    assert ", ".join(columns) in str(caught.value)


def test_columns_that_are_not_used_may_have_any_name_but_the_key_s() -> None:
    columns = ["device_id", "site", "bucket", "site.name"]
    expectations.check_columns(columns, reference(columns=("site",)), "here")


def test_an_expectation_of_a_distribution_has_the_library_that_it_needs(tmp_path: Path) -> None:
    """Great Expectations' import leaves SciPy's statistics out until they are used."""
    partition = {"values": ["pump", "meter"], "weights": [0.5, 0.5]}
    suite = written(
        tmp_path,
        expect("column_kl_divergence_to_be_less_than", column="type", partition_object=partition, threshold=0.1),
    )
    expectations.validate(devices("a", "b", type=["pump", "meter"]), reference(suite))
    text = refusal(devices("a", "b", "c", "d", type=["pump", "pump", "pump", "meter"]), reference(suite))
    assert "expect_column_kl_divergence_to_be_less_than" in text
    assert "observed 0.13" in text


def test_great_expectations_is_neither_imported_early_nor_heard(tmp_path: Path) -> None:
    """In a process of its own: output is what reaches the process's own streams."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, pathlib, pyarrow as pa\n"
        "sys.modules['sqlalchemy'] = None  # as if it were not installed\n"
        "from service import settings\n"
        "from service.reference import expectations\n"
        "assert 'great_expectations' not in sys.modules\n"
        f"suite = pathlib.Path({str(DEMO)!r})\n"
        "reference = settings.Reference(url='jdbc:sqlite:/x', query='q', expectations=suite)\n"
        "table = pa.table({c: ['a'] for c in ('device', 'type', 'site', 'installed')})\n"
        "try:\n    expectations.validate(table, reference)\n"
        "except expectations.ReferenceDataError:\n    assert 'great_expectations' in sys.modules\n"
        "else:\n    raise SystemExit('nothing was refused')\n"
        "assert not {'scipy.stats._stats_py', 'altair.vegalite'} & {*sys.modules}, 'a third of the import, for nothing'\n"
        "from scipy import stats\nimport scipy.stats\n"
        "assert stats.entropy([1, 1]) == scipy.stats.entropy([1, 1]) > 0.69\n"
        "assert scipy.stats.norm.cdf(0) == 0.5\n",
        encoding="utf-8",
    )
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")

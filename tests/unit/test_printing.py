"""Nothing that a device writes acts on the terminal of who reads it."""

import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from load.fleet.payloads import PAGE, TERMINAL
from load.testbed import to_toml
from service.printing import document, printable, say
from tests import minimal
from tidemark_sql import command as sql


@pytest.mark.parametrize("payload", TERMINAL + PAGE)
def test_a_line_stays_one_line_of_plain_text(payload: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(f"device {payload} end")
    line = str(capsys.readouterr().out)
    assert line.endswith(" end\n")
    assert line.removesuffix("\n").isprintable()
    assert line.count("\n") == 1


@pytest.mark.parametrize("payload", TERMINAL + PAGE)
def test_a_document_says_the_same_and_is_plain_text(payload: str) -> None:
    line = document({"device": payload})
    assert line.isprintable()
    assert line.isascii()
    assert json.loads(line) == {"device": payload}


def test_what_is_harmless_is_printed_as_it_is() -> None:
    assert printable("S\u00fcd \u6e29\u5ea6 \U0001f321 a|b") == "S\u00fcd \u6e29\u5ea6 \U0001f321 a|b"
    assert printable("a\x1b[2Jb\n") == r"a\x1b[2Jb\n"


@pytest.mark.parametrize(
    ("form", "lines"), [((), ["place", "S\u00fcd \\u6e29", "1 row"]), (("--csv",), ["place", "S\u00fcd \\u6e29"])]
)
def test_characters_that_the_output_has_not_are_escaped(
    form: tuple[str, ...], lines: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "tidemark.toml"
    path.write_text(to_toml(minimal.document()))
    words = ["-m", "service.cli", "sql", "--config", path, *form, "select 'S\u00fcd \u6e29' as place"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, *words], env=environment, check=True, capture_output=True, timeout=120)
    assert done.stdout.decode("latin-1").split() == " ".join(lines).split()


def test_a_sum_of_whole_numbers_is_a_number_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    answer = duckdb.connect().execute("select sum(n) as readings from (select 5::bigint as n)").to_arrow_table()
    sql.show(answer, "json")
    assert json.loads(capsys.readouterr().out) == [{"readings": 5}]


def test_decimals_are_numbers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    sql.show(pa.table({"price": [Decimal("1.50"), None], "large": [Decimal(2**70), Decimal(0)]}), "json")
    assert json.loads(capsys.readouterr().out) == [{"price": 1.5, "large": 2**70}, {"price": None, "large": 0}]


def test_columns_of_one_name_are_all_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    answer = pa.Table.from_arrays([pa.array([n]) for n in range(4)], names=["start", "start", "start_2", "end"])
    sql.show(answer, "json")
    assert json.loads(capsys.readouterr().out) == [{"start": 0, "start_2": 1, "start_2_2": 2, "end": 3}]


def test_the_time_between_two_times_is_a_length(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ["1 day 01:30:00.250", "-00:00:02.500", "14 months 2 days 00:00:00.000"]
    text = "select timestamptz '2026-11-22 01:30:00.25Z' - timestamptz '2026-11-21 00:00:00Z' a, to_milliseconds(-2500) b, "
    answer = duckdb.connect().execute(text + "interval '14 months 2 days' c").to_arrow_table()
    sql.show(answer, "json")
    assert json.loads(capsys.readouterr().out) == [dict(zip("abc", lengths, strict=True))]
    sql.show(answer, "csv")
    assert capsys.readouterr().out.splitlines() == ["a,b,c", ",".join(lengths)]

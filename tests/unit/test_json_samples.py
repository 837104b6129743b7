"""`tidemark schemas check` with JSON: what would become of sample records."""

from pathlib import Path

import pytest

from service.commands import compatibility
from tests.unit.test_explain import settings

GOOD = '{"sensor":"a","ts":"2026-11-24T08:00:00Z","env":{"temp":20,"hum":40}}'


def lines(folder: Path, text: str) -> list[str]:
    file = folder / "sample.json"
    file.write_text(text, encoding="utf-8")
    return [str(line).replace(str(file), "FILE") for line in compatibility.check(settings(), [file])]


def test_records_that_would_be_decoded_are_ok(tmp_path: Path) -> None:
    pretty = GOOD.replace(",", ",\n  ")
    assert lines(tmp_path, pretty) == ["ok   FILE: 1 record can be decoded"]
    assert lines(tmp_path, f"{GOOD}\n{GOOD}\n") == ["ok   FILE: 2 records can be decoded"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD.replace(":20,", ':"hot",'), 'record 1: env.temp = "hot": expected a number'),
        (f"{GOOD}\n{GOOD.replace('sensor', 'name')}", "record 2: sensor is missing or null: expected a device id"),
        (GOOD.replace('"ts"', '"at"'), "record 1: ts is missing or null: expected an ISO 8601 date"),
        (GOOD.replace("2026-11-24T08:00:00Z", "noon"), 'record 1: ts = "noon": expected an ISO 8601 date'),
        (GOOD[:-1], "record 1: is not JSON: Expecting ',' delimiter (byte "),
        ("", "has no record"),
    ],
)
def test_a_sample_that_would_be_rejected_names_its_field(tmp_path: Path, text: str, problem: str) -> None:
    assert lines(tmp_path, text)[0].startswith(f"FAIL FILE: {problem}")


def test_a_measure_that_no_record_has_is_a_warning(tmp_path: Path) -> None:
    [good, warning] = lines(tmp_path, GOOD.replace('"hum"', '"humidity"'))
    assert good == "ok   FILE: 1 record can be decoded"
    assert warning.startswith("warn FILE: input.measures.hum: no record has env.hum")


def test_a_file_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    [line] = compatibility.check(settings(), [tmp_path / "none.json"])
    assert (line.status, line.detail) == ("fail", "cannot be read: No such file or directory")

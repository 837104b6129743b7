"""What stands before a record of Avro, in the plan: the same answers as without Spark (tests/unit/test_framings.py)."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from service.admission import readings
from service.admission.formats.framings import FRAMINGS
from tests.stream.records import BASE_MS
from tests.stream.test_public_shapes import RECORD
from tests.unit.test_framings import cases, settings

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("framing", FRAMINGS)
def test_each_framing_is_read_by_the_plan(spark: Any, tmp_path: Path, framing: str) -> None:
    values = cases(framing)
    at = datetime.fromtimestamp(BASE_MS / 1000, UTC)
    rows = [(b"k", value, "topic", 0, number, at, []) for number, (value, _) in enumerate(values.values())]
    decided = readings.admit(spark.createDataFrame(rows, RECORD), settings(tmp_path, framing)).collect()
    found = {
        name: row["t"] if row["reject"] is None else readings.parsed(row["reject"])["reason"]
        for name, row in zip(values, sorted(decided, key=lambda row: int(row["offset"])), strict=True)
    }
    assert found == {name: expected for name, (_, expected) in values.items()}

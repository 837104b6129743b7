"""Topics in the shapes of other people's systems, decoded by the plan."""

from typing import Any

import pytest

from tests.examples import one_in
from tests.public_shapes import BROKER_MS, CASES, plain, sent, settings
from tests.stream.decisions import admitted, reason
from tests.stream.records import Record

pytestmark = pytest.mark.spark


# tests/unit/test_public_shapes.py decodes the records of all cases without Spark.
@pytest.mark.parametrize("name", one_in(6, (pytest.param(name, marks=pytest.mark.shapes(name)) for name in CASES)))
def test_the_plan_gives_the_values_computed_by_hand(spark: Any, name: str) -> None:
    given, records = settings(CASES[name]), sent(CASES[name])
    found: list[list[Any]] = [[] for _ in records]
    of_kafka = [Record(r.value, BROKER_MS, r.key, tuple(r.headers), n, "topic") for n, r in enumerate(records)]
    for row in admitted(spark, given, of_kafka):
        found[row["offset"]].append(_decided(row, list(given.measures), list(given.columns)))
    assert found == [each.expected for each in records]


def _decided(row: Any, measures: list[str], columns: list[str]) -> Any:
    if row["reject"] is not None:
        return reason(row)
    if row["device"] is None:
        return "filtered"
    return plain(
        row["device"], row["event_ms"], {name: row[name] for name in measures}, {name: row[name] for name in columns}
    )

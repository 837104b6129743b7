"""Topics in the shapes of other people's systems, decoded by the plan."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import types as t

from service.admission import readings
from service.admission.expansion import INDEX
from tests.public_shapes import BROKER_MS, CASES, plain, sent, settings

pytestmark = pytest.mark.spark

RECORD = t.StructType(
    [
        t.StructField("key", t.BinaryType()),
        t.StructField("value", t.BinaryType()),
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("timestamp", t.TimestampType()),
        t.StructField(
            "headers",
            t.ArrayType(t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])),
        ),
    ]
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.shapes(name)) for name in CASES])
def test_the_plan_gives_the_values_computed_by_hand(spark: Any, name: str) -> None:
    given, records = settings(CASES[name]), sent(CASES[name])
    at = datetime.fromtimestamp(BROKER_MS / 1000, UTC)
    rows = [(each.key, each.value, "topic", 0, number, at, list(each.headers)) for number, each in enumerate(records)]
    frame = spark.createDataFrame(rows, RECORD)
    decided = readings.admit(frame if given.needs_headers else frame.drop("headers"), given)
    found: list[list[Any]] = [[] for _ in records]
    order = ["offset", *([INDEX] if INDEX in decided.columns else [])]
    for row in sorted(decided.collect(), key=lambda row: [row[each] or 0 for each in order]):
        found[row["offset"]].append(_decided(row, list(given.measures), list(given.columns)))
    assert found == [each.expected for each in records]


def _decided(row: Any, measures: list[str], columns: list[str]) -> Any:
    if row["reject"] is not None:
        return readings.parsed(row["reject"])["reason"]
    if row["device"] is None:
        return "filtered"
    return plain(
        row["device"], row["event_ms"], {name: row[name] for name in measures}, {name: row[name] for name in columns}
    )

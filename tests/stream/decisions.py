"""What admission decides of records: on Spark, and by the oracle from the same settings."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from load.judge import oracle
from load.judge.rules import Reference, read_rules
from load.servers.kafka import KAFKA
from load.testbed import to_toml
from service.admission import readings
from service.settings import Settings
from tests.stream.records import Record


def frame_of(spark: SparkSession, records: Iterable[Record]) -> DataFrame:
    return spark.createDataFrame([record.row() for record in records], KAFKA).coalesce(1)


def admitted(spark: SparkSession, settings: Settings, records: Iterable[Record], **more: Any) -> list[dict[str, Any]]:
    """The rows of readings.admit, in the order of the records."""
    return readings.admit(frame_of(spark, records), settings, **more).toArrow().to_pylist()


def reason(row: Mapping[str, Any]) -> str | None:
    """Why a row is rejected; None if it is admitted or filtered."""
    return json.loads(row["reject"])["reason"] if row["reject"] else None


def outcome(row: Mapping[str, Any], *names: str) -> Any:
    """The reason, or the values of these columns."""
    return reason(row) or tuple(row[name] for name in names)


def by_oracle(
    folder: Path, document: Mapping[str, Any], records: Iterable[Record], reference: Reference = MappingProxyType({})
) -> tuple[oracle.Ledger, list[str | None]]:
    """The oracle's ledger of the records, and the reason of each that it rejects."""
    config = folder / "tidemark.toml"
    config.write_text(to_toml(document))
    ledger = oracle.Ledger(read_rules(config), reference)
    taken = [oracle.Record("readings", 0, n, each.at, each.key, each.value, ()) for n, each in enumerate(records)]
    return ledger, [ledger.take(each) for each in taken]

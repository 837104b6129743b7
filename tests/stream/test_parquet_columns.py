"""What readers of a Parquet outlet see of measures that came and went."""

from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from service.outlets import tables
from service.outlets.outlet import Entry, Position
from service.outlets.parquet import Parquet
from service.settings import ParquetOutlet
from tests.stream.records import BASE_MS

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000


class Files:
    """A Parquet outlet of sessions; `restart` is that of the service with other measures."""

    def __init__(self, path: Path) -> None:
        self.path, self.batch, self.device = path, 0, 0
        self.columns = set[str]()

    def restart(self, *measures: str) -> None:
        self.measures = measures
        self.outlet = Parquet(
            ParquetOutlet(name="f", kind="parquet", path=str(self.path), sessions=True, compact_after=3)
        )
        self.outlet.open(self.batch + 1)

    def write(self, day: int) -> None:
        """A closed session of another device, with 1.5 as the maximum of each measure."""
        schema = tables.sessions_schema(dict.fromkeys(self.measures, ()))
        at = pa.scalar(BASE_MS + day * DAY_MS).cast(tables.TIME)
        row = {"device": f"d{self.device}", "start": at, "last": at, "count": 1, "duration": 0, "state": "closed"}
        row |= {"reason": "gap", "revision": 0, "closed_by": "watermark", "epoch": self.batch + 1, "batch": self.batch}
        row |= {f"{measure}_max": 1.5 for measure in self.measures}
        columns = [pa.array([row.get(field.name)], field.type) for field in schema]
        position = Position(self.batch + 1, self.batch, writer=self.batch + 1)
        self.outlet.write(Entry(position, pa.Table.from_arrays(columns, schema=schema)))
        self.columns |= {*schema.names}
        self.batch, self.device = self.batch + 1, self.device + 1
        self.restart(*self.measures)


def maxima(frame: pd.DataFrame, measure: str) -> int:
    """How many devices have the measure."""
    return int(np.count_nonzero(frame[f"{measure}_max"] == 1.5)) if f"{measure}_max" in frame else -1


def readers(path: Path, spark: SparkSession) -> dict[str, pd.DataFrame]:
    pattern = str(path / "**" / "*.parquet")
    query = f"from read_parquet('{pattern}', hive_partitioning = true, union_by_name = true)"
    return {
        "pandas": pd.read_parquet(path),
        "pyarrow": ds.dataset(path, format="parquet", partitioning="hive").to_table().to_pandas(),
        "duckdb": duckdb.sql(query).to_arrow_table().to_pandas(),
        "spark": spark.read.parquet(str(path)).toArrow().to_pandas(),
    }


@pytest.mark.silent("1.10")
def test_every_reader_sees_a_measure_that_was_added_later_and_one_that_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Files(tmp_path / "sessions")
    steps: Sequence[tuple[tuple[str, ...], Sequence[int]]] = (
        (("t",), (5, 6, 6)),
        (("t", "h"), (6, 7)),
        (("h",), (3, 7)),  # an older day: late sessions that were corrected
        (("h", "p"), (8, 8, 8, 8)),
    )
    expected = {"t": 0, "h": 0, "p": 0}
    for measures, days in steps:
        files.restart(*measures)
        for day in days:
            files.write(day)
        for measure in measures:
            expected[measure] += len(days)
        present = {name: number for name, number in expected.items() if number}
        for name, frame in readers(files.path, spark).items():
            assert len(frame) == files.device, name
            assert {each: maxima(frame, each) for each in present} == present, name
            assert {*frame.columns} == {*files.columns, "day"}, name


def test_files_of_the_same_columns_have_no_other_beside_them(tmp_path: Path) -> None:
    files = Files(tmp_path / "sessions")
    files.restart("t")
    for day in (5, 5, 6, 7, 4):
        files.write(day)
    assert [*files.path.glob("day=1970*")] == []


def test_a_folder_of_an_earlier_version_gets_the_columns_of_all_its_files(tmp_path: Path) -> None:
    files = Files(tmp_path / "sessions")
    for measures, day in ((("t",), 5), (("t", "h"), 6), (("t",), 7)):
        files.restart(*measures)
        files.write(day)
    for each in files.path.glob("day=1970*/*"):
        each.unlink()
    assert maxima(pd.read_parquet(files.path), "h") == -1
    files.restart("t", "p")
    files.write(8)
    frame = pd.read_parquet(files.path)
    assert {name: maxima(frame, name) for name in "thp"} == {"t": 4, "h": 1, "p": 1}

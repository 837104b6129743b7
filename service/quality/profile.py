"""`tidemark profile`: draws a suite of Great Expectations from a sample of the topics, for a data engineer to read and edit.

No expectation is tested for significance. Each is what the sample has, with a margin:

    a measure that is there  99 % of its values are within the sample's range, widened by a fifth on either side
    a missing measure        at most 2 in 100 admitted readings more lack it than in the worst piece
    the mean of a measure    within the means of the pieces, and half a standard deviation further
    device                   99 % of the ids have a shape of the sample: the same letters, any digits
    devices to readings      between half and twice the share of the pieces
    readings of a device     the busiest one has at most twice as many as in any piece
    event time               99 % are as far ahead of or behind the broker's time as in the sample, and a fifth or 1 s further
    admission                at most 5 in 100 records less are admitted than in the worst piece

Pieces are slices of the sample in order of time, as large as the samples that the service checks (`quality.sample`), and all of
it. Figures that depend on the size of a sample, such as the readings of a device, come from samples of that size.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from service.errors import SchemaError
from service.pipeline.command_session import started
from service.quality import sample
from service.quality.sample import ADMITTED, AHEAD, DEVICE, OF_DEVICE, REASON
from service.quality.suite import LESS_THERE, MOSTLY, Item, down, item, less, pattern, require_place, save, up, wider
from service.reference import lookup, snapshots
from service.reference.attributes import Attributes
from service.settings import Settings

NAME = "readings.expectations.json"
WIDER = 0.2
"""Share of the width of a sample's range, on either side."""
MEAN_WIDER = 0.5
"""Standard deviations."""
AHEAD_S = 1.0
"""Least margin of times, because the records that one producer sends at once are milliseconds apart."""
LESS_ADMITTED = 0.05
NOTES = (
    "Drawn by `tidemark profile`. Columns: device, the measures, 'seconds ahead' (event time less broker time), 'readings of "
    "device' (in the sample), 'is admitted' (1 or 0), 'reject reason'. One row for each record; one that was not admitted has "
    "no device and no measures."
)

IS_ADMITTED = {"type": "nullity", "column": {"name": DEVICE}, "is_null": False}
"""Great Expectations' condition for admitted rows."""


def profile(settings: Settings, out: Path, count: int, say: Callable[[str], object], *, replace: bool = False) -> None:
    """Draw a suite of the last `count` records and write it to `out`.

    Raises SettingsError when the file exists and `replace` is false, SetupError when it cannot be written, SourceError when
    Kafka does not answer or has no record, SchemaError when no record is admitted.
    """
    require_place(out, replace=replace)
    source = sample.require_newest(settings.kafka, count, "draw expectations from")
    with started(settings) as spark, tempfile.TemporaryDirectory(prefix="tidemark-profile-") as folder:
        table = sample.read(spark, settings, source, _attributes(spark, settings, Path(folder)))
    suite = draw(table, list(settings.measures), settings.quality.sample)
    save(out, suite, f"{table.num_rows} records", say, replace=replace)


def draw(table: pa.Table, measures: Sequence[str], piece: int) -> dict[str, Any]:
    """Return the suite of a sample, for checks of samples of `piece` records. The same sample gives the same suite.

    Raises SchemaError when nothing in it was admitted.
    """
    admitted = table.filter(pc.is_null(table[REASON]))
    if not admitted.num_rows:
        reasons = Counter(table[REASON].to_pylist())
        what = f"none of {table.num_rows} records is admitted: " + ", ".join(
            f"{n} {r}" for r, n in reasons.most_common()
        )
        raise SchemaError(what, remedy="Mend [input] or [admission]; `tidemark check` tries them")
    pieces = [table, *(table.slice(n * piece, piece) for n in range(table.num_rows // piece))]
    items = [each for name in measures for each in _measure(name, pieces)]
    items += _devices(pieces)
    low, high = _ends(admitted[AHEAD])
    items += [_between(AHEAD, *wider(low, high, WIDER, max(high - low, AHEAD_S / WIDER)))]
    items += [_mean(ADMITTED, min_value=less(min(pc.mean(each[ADMITTED]).as_py() for each in pieces), LESS_ADMITTED))]
    drawn = {"records": table.num_rows, "admitted": admitted.num_rows, "pieces": max(1, len(pieces) - 1)}
    return {"name": "readings", "meta": {"notes": NOTES, "drawn_from": drawn}, "expectations": items}


def _measure(name: str, pieces: Sequence[pa.Table]) -> Iterator[Item]:
    values = pieces[0][name]
    if values.null_count == len(values):
        return
    shares = [1 - _lacking(piece, name) for piece in pieces]
    yield item("column_values_to_not_be_null", name, mostly=less(min(shares), LESS_THERE), row_condition=IS_ADMITTED)
    low, high = _ends(values)
    yield _between(name, *wider(low, high, WIDER))
    means = [mean for piece in pieces if (mean := pc.mean(piece[name]).as_py()) is not None]
    below, above = wider(min(means), max(means), MEAN_WIDER, pc.stddev(values).as_py())
    yield _mean(name, min_value=below, max_value=above)


def _lacking(piece: pa.Table, name: str) -> float:
    admitted = piece.filter(pc.is_null(piece[REASON]))
    return float(admitted[name].null_count / max(1, admitted.num_rows))


def _devices(pieces: Sequence[pa.Table]) -> Iterator[Item]:
    counts = [each for piece in pieces if (each := Counter(filter(None, piece[DEVICE].to_pylist())))]
    if regex := pattern(counts[0]):
        yield item("column_values_to_match_regex", DEVICE, regex=regex, mostly=MOSTLY)
    shares = [len(each) / each.total() for each in counts]
    yield item(
        "column_proportion_of_unique_values_to_be_between",
        DEVICE,
        min_value=down(min(shares) / 2, 4),
        max_value=min(1.0, up(2 * max(shares), 4)),
    )
    most = max(max(each.values()) for each in counts)
    yield item("column_max_to_be_between", OF_DEVICE, min_value=1, max_value=2 * most)


def _between(column: str, low: float, high: float) -> Item:
    return item("column_values_to_be_between", column, min_value=low, max_value=high, mostly=MOSTLY)


def _mean(column: str, **limits: float) -> Item:
    return item("column_mean_to_be_between", column, **limits)


def _ends(values: pa.ChunkedArray) -> tuple[float, float]:
    ends = pc.min_max(values).as_py()
    return ends["min"], ends["max"]


def _attributes(spark: SparkSession, settings: Settings, folder: Path) -> Attributes | None:
    """Return the reference as the database has it now. The snapshot is not kept."""
    if settings.reference is None or not lookup.needed(settings):
        return None
    return snapshots.load(spark, settings.reference, folder).attributes()

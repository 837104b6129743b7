"""A backfill that cannot begin is refused before anything starts."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from load.walks import admitted
from service.admission.readings import MEETS
from service.aggregation import sessions
from service.errors import SettingsError
from service.pipeline import builder
from service.recompute import engine
from service.recompute.backfill import backfill, passes
from service.recompute.sources import Reach
from service.row_schemas import PARTS
from service.settings import Settings
from state import history
from tests.stream.records import BASE_MS, make_settings

DAY_MS = 86_400_000


def test_a_view_that_does_not_exist_is_refused_before_spark_starts_or_another_run_is_fenced(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, redis={"url": "redis://127.0.0.1:1/0"})
    with pytest.raises(SettingsError, match=r"--view nowhere: there is no view with windows of this name\. Views: "):
        backfill(settings, (0, 1), ["nowhere"], print)


def test_views_of_very_different_windows_are_not_held_in_memory_together(tmp_path: Path) -> None:
    """A part of a month would hold 45,000 windows of a minute of each key, or more."""
    windows = {"hour": "1 h", "month": "1 mo", "minute": "1 m", "day": "1 d", "slow": "3 h", "week": "1 w"}
    views = [{"name": name, "window": length} for name, length in windows.items()]
    views += [{"name": "sliding", "window": "2 h", "slide": "1 m"}, {"name": "ever", "window": "none"}]
    found = passes(make_settings(tmp_path, views=views))
    names = [[view.name for view in each.views] for each in found.values()]
    assert names == [["minute", "hour"], ["sliding"], ["slow", "day", "week"], ["month"]]
    assert next(iter(found)) == "windows of minute, hour"
    hours = [-(-Reach.of_windows(each).after_ms // 3_600_000) for each in found.values()]
    assert hours[0] <= 3, "a part of minutes is not as long as a month"
    alone = make_settings(tmp_path, views=views[:1])
    assert passes(alone) == {"windows": alone}


def windows(of: Settings, readings: pa.Table) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The windows of readings that all settings have admitted, as a part of these settings has them."""
    step = builder.folding(of, None, views=of.closing_views)
    rows = (row for batch in step(iter(readings.to_batches(max_chunksize=70))) for row in batch.to_pylist())
    parts = sorted((row["first"], row["kind"], row["payload"]) for row in rows if row["kind"] == PARTS)
    payloads = [engine._payload(*each) for each in parts]
    closed = history.closed(payloads, BASE_MS + 100 * DAY_MS, 0, sessions.rules(of))
    found = (row for each in closed for row in each.windows.to_pylist())
    return {(row["view"], row["key"], row["start"]): (row["end"], row["count"], row["min"]) for row in found}


def test_windows_of_several_passes_are_those_of_one(tmp_path: Path) -> None:
    """The readings have what the filters of all views say, in each pass."""
    views = [
        {"name": "minute", "by": ["device"], "window": "1 m", "where": "temperature > 5"},
        {"name": "hour", "window": "1 h"},
        {"name": "month", "window": "1 mo", "where": "temperature > 2"},
    ]
    together, numbers = make_settings(tmp_path, views=views), random.Random(7)
    schema, rows = admitted.schema(("temperature",)), []
    for offset in range(400):
        at, value = BASE_MS + numbers.randrange(40 * DAY_MS), float(numbers.randrange(10))
        row = {"bucket": 0, "device": f"d{offset % 7}", "event_ms": at, "broker_ms": at, "temperature": value}
        meets = {MEETS + "minute": str(value > 5).lower(), MEETS + "month": str(value > 2).lower()}
        rows.append({**row, **meets, "from_partition": 0, "offset": offset})
    filters = [(MEETS + name, pa.string()) for name in ("minute", "month")]
    readings = pa.Table.from_pylist(rows, pa.schema([*schema, *filters]))
    apart = [windows(each, readings) for each in passes(together).values()]
    assert len(apart) == 2
    assert {key: value for each in apart for key, value in each.items()} == windows(together, readings)

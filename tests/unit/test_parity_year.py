"""Local days and months over changes of clock: the fold of the service against SQL of DuckDB, which knows zones by itself."""

import math

import pyarrow as pa

from load.parity import year
from service.publication.rows import window_rows
from service.redis.keys import Keys
from service.reference.attributes import Index
from service.settings import View
from state import windows
from tests.unit.test_view_statistics import BASE_MS, folded


def test_days_and_months_of_four_zones_are_those_of_sql(monkeypatch):
    monkeypatch.setattr(year, "HOURS", 24 * 80)  # clocks change in Lord Howe, Rome and New York
    monkeypatch.setattr(year, "_BROKEN", 0.02)
    sent = list(year.readings(3, 4))
    zones = pa.table({"device": [f"m{n:03d}" for n in range(4)], "zone": [*year.ZONES.values()]})
    right = {key: each for key, each in year.expected(sent).items() if ":site_" not in key}
    of = [View(**view) for view in year.views() if "device" in view["by"]]
    parts = []
    for at in range(0, len(sent), 500):
        some = [(each.device, each.event_ms - BASE_MS, each.energy) for each in sent[at : at + 500]]
        parts += folded(some, of, Index(zones))
    table = windows.advance(windows.empty(), parts, 0).open
    rows = window_rows(table, Keys("tidemark"), of, 0)
    actual = {
        key.decode().replace(":t:", ":energy:"): {
            name: float(column[row]) for name, column in rows.fields.items() if name in year.STATISTICS
        }
        for row, key in enumerate(rows.keys)
    }
    assert actual.keys() == right.keys()
    assert len({key.split(":")[2] for key in right}) == 2 * len(year.ZONES) + 2
    for key, fields in right.items():
        for name, value in fields.items():
            assert math.isclose(actual[key][name], value, rel_tol=1e-9, abs_tol=1e-9), (key, name)
    assert sum(fields["resets"] for fields in right.values()) > 0

"""The versions of the views: what a change makes of them, and what the checkpoint keeps."""

import json
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from service.checkpoint import view_versions
from service.checkpoint.view_versions import Filled, Log, Versions
from service.errors import CheckpointError, SinkRefusedError
from service.publication.meta import meta, require_views
from service.settings import Settings
from service.spark.files import Local
from state.calendar import VERSION
from tests import minimal

CONTRACT = json.loads((Path(__file__).parents[2] / "schemas" / "redis.json").read_text())
NEWEST_MS = 1_000_000
DEVICE: dict[str, Any] = {"name": "device", "by": ["device"], "window": "1 m"}
TOTAL: dict[str, Any] = {"name": "total", "window": "10 m"}


def made(*views: dict[str, Any], measures: tuple[str, ...] = ("temperature", "humidity"), **fields: Any) -> Settings:
    return minimal.settings(input={"measures": {name: name for name in measures}, **fields}, views=list(views))


def shown(versions: Versions) -> list[tuple[str, str, bool, dict[str, int]]]:
    return [(view.of, view.name, view.is_next, dict(view.incomplete)) for view in versions.views]


def both(ms: int = NEWEST_MS + 1) -> dict[str, int]:
    return {"temperature": ms, "humidity": ms}


def test_settings_that_stay_change_nothing() -> None:
    begun = view_versions.begun(made(DEVICE, TOTAL))
    assert shown(begun) == [("device", "device", False, {}), ("total", "total", False, {})]
    assert view_versions.changed(begun, made(DEVICE, TOTAL), NEWEST_MS) is begun


def test_a_view_that_is_added_is_complete_from_the_newest_reading_on() -> None:
    after = view_versions.changed(view_versions.begun(made(DEVICE)), made(DEVICE, TOTAL), NEWEST_MS)
    assert shown(after) == [("device", "device", False, {}), ("total", "total", False, both())]
    view = after.views[1]
    assert (view.complete_from("humidity"), view.complete_from("other")) == (NEWEST_MS + 1, None)


def test_a_view_that_carries_readings_is_complete_where_none_from_before_it_is_carried_into() -> None:
    carrying = {**DEVICE, "statistics": ["increase"], "carry_for": "2 m"}
    after = view_versions.changed(view_versions.begun(made(DEVICE)), made(carrying), NEWEST_MS)
    assert shown(after)[1] == ("device", "device@2", True, both(NEWEST_MS + 1 + 120_000))
    again = view_versions.changed(after, made({**carrying, "statistics": ["resets"]}), NEWEST_MS)
    assert [view.name for view in again.views] == ["device", "device@2"]
    assert [
        view.name for view in view_versions.changed(after, made({**carrying, "carry_for": "3 m"}), NEWEST_MS).views
    ] == ["device", "device@3"]


def test_a_view_that_is_added_before_the_first_reading_is_complete() -> None:
    after = view_versions.changed(view_versions.begun(made(DEVICE)), made(DEVICE, TOTAL), -1)
    assert shown(after)[1] == ("total", "total", False, {})


@pytest.mark.parametrize(
    "change", [{"window": "2 m"}, {"slide": "30 s"}, {"by": []}, {"where": "temperature > 0"}], ids=str
)
def test_another_length_slide_column_or_filter_is_a_new_version_beside_the_old_one(change: dict[str, Any]) -> None:
    after = view_versions.changed(view_versions.begun(made(DEVICE)), made(DEVICE | change), NEWEST_MS)
    assert shown(after) == [("device", "device", False, {}), ("device", "device@2", True, both())]


@pytest.mark.parametrize("change", [{"statistics": ["count", "mean"]}, {"retain": "2 h"}], ids=str)
def test_other_statistics_and_another_retain_keep_the_version(change: dict[str, Any]) -> None:
    after = view_versions.changed(view_versions.begun(made(DEVICE)), made(DEVICE | change), NEWEST_MS)
    assert shown(after) == [("device", "device", False, {})]
    assert after.views[0].statistics == made(DEVICE | change).views[0].statistics


def test_a_measure_that_is_added_is_incomplete_alone() -> None:
    begun = view_versions.begun(made(DEVICE | {"measures": ["humidity"]}))
    after = view_versions.changed(begun, made(DEVICE), NEWEST_MS)
    assert shown(after) == [("device", "device", False, {"temperature": NEWEST_MS + 1})]
    alone = view_versions.begun(made(DEVICE, measures=("humidity",)))
    assert shown(view_versions.changed(alone, made(DEVICE), NEWEST_MS)) == shown(after)


def test_a_name_moves_when_the_next_version_is_complete_and_in_one_step() -> None:
    waiting = view_versions.changed(view_versions.begun(made(DEVICE)), made(DEVICE | {"window": "2 m"}), NEWEST_MS)
    assert view_versions.filled(waiting, {"device@2": Filled(both(NEWEST_MS))}) == waiting, "of a former change"
    assert shown(waiting)[0] == ("device", "device", False, {}), "readers find the old version meanwhile"
    after = view_versions.filled(waiting, {"device@2": Filled(both(), begins_ms=5)})
    assert shown(after) == [("device", "device@2", False, {})]
    assert (after.views[0].begins_ms, after.views[0].window_ms) == (5, 120_000)
    assert view_versions.changed(after, made(DEVICE | {"window": "2 m"}), 0) is after


def test_a_change_while_the_next_version_waits_replaces_that_and_the_old_one_serves_on() -> None:
    first = view_versions.changed(view_versions.begun(made(DEVICE)), made(DEVICE | {"window": "2 m"}), NEWEST_MS)
    second = view_versions.changed(first, made(DEVICE | {"window": "3 m"}), NEWEST_MS + 7)
    assert shown(second) == [("device", "device", False, {}), ("device", "device@3", True, both(NEWEST_MS + 8))]
    back = view_versions.changed(second, made(DEVICE), NEWEST_MS + 9)
    assert shown(back) == [("device", "device", False, {})], "what still serves goes on"


def test_a_view_that_was_removed_comes_back_under_another_name_in_keys() -> None:
    removed = view_versions.changed(view_versions.begun(made(DEVICE, TOTAL)), made(DEVICE), NEWEST_MS)
    assert shown(removed) == [("device", "device", False, {})]
    again = view_versions.changed(removed, made(DEVICE, TOTAL), NEWEST_MS)
    assert shown(again)[1] == ("total", "total@2", False, both())


def test_a_new_checkpoint_takes_the_names_that_the_prefix_has() -> None:
    before = view_versions.changed(view_versions.begun(made(DEVICE)), made(DEVICE | {"window": "2 m"}), NEWEST_MS)
    text = meta(view_versions.applied(made(DEVICE), view_versions.filled(before, {"device@2": Filled(both())})))
    begun = view_versions.begun(made(DEVICE | {"window": "2 m"}, TOTAL), text)
    assert shown(begun) == [("device", "device@2", False, {}), ("total", "total", False, {})]
    assert begun.last == {"device": 2, "total": 1}


def test_meta_names_the_version_what_waits_and_what_is_complete() -> None:
    before = view_versions.changed(view_versions.begun(made(DEVICE)), made(DEVICE | {"window": "2 m"}), NEWEST_MS)
    views = json.loads(meta(view_versions.applied(made(DEVICE), before)))["views"]
    assert [(each["name"], each.get("of"), each.get("next"), each.get("complete_from")) for each in views] == [
        ("device", None, None, None),
        ("device@2", "device", True, NEWEST_MS + 1),
    ]


def test_a_batch_has_the_views_of_the_newest_file_that_is_not_after_it(tmp_path: Path) -> None:
    log = Log(Local(tmp_path))
    assert log.at(7) is None
    begun = view_versions.begun(made(DEVICE))
    after = view_versions.changed(begun, made(DEVICE | {"where": "humidity > 1"}, TOTAL), NEWEST_MS)
    log.write(3, begun)
    log.write(5, after)
    assert [log.at(batch) for batch in (3, 4, 5, 9)] == [begun, begun, after, after]
    assert log.at(2) is None
    for batch in range(6, 40):
        log.write(batch, begun)
    assert sorted(log.numbers()) == list(range(20, 40))


def test_a_view_without_windows_has_no_past_to_wait_for(tmp_path: Path) -> None:
    endless = {"name": "ever", "window": "none"}
    begun = view_versions.begun(made(DEVICE))
    after = view_versions.changed(begun, made(DEVICE, endless), NEWEST_MS)
    assert shown(after)[1] == ("ever", "ever", False, {})
    changed = view_versions.changed(after, made(DEVICE, endless | {"by": ["device"]}), NEWEST_MS)
    assert shown(changed)[1:] == [("ever", "ever@2", False, {})]
    Log(Local(tmp_path)).write(1, changed)
    assert Log(Local(tmp_path)).at(1) == changed


def test_views_that_are_kept_are_those_that_the_versions_were_made_of() -> None:
    """A process whose own views and measures are others goes on with those of the checkpoint, as far as it can."""
    humid = {"name": "humid", "window": "1 m", "measures": ["humidity"]}
    before = view_versions.begun(made(DEVICE, TOTAL, humid))
    versions = view_versions.changed(before, made({**DEVICE, "window": "2 m"}, TOTAL, humid), NEWEST_MS)
    own = made({"name": "own", "window": "1 m"})
    kept = view_versions.kept(own, versions)
    assert [(view.name, view.window_ms) for view in kept.views] == [
        ("device", 120_000),
        ("total", 600_000),
        ("humid", 60_000),
    ]
    assert view_versions.changed(versions, kept, NEWEST_MS) is versions
    dry = view_versions.kept(made({"name": "own", "window": "1 m"}, measures=("temperature",)), versions)
    assert [view.name for view in dry.views] == ["device", "total"]
    assert view_versions.kept(own, Versions()) == own


DAY: dict[str, Any] = {"name": "day", "window": "1 d", "time_zone": "Europe/Rome"}
MONTH: dict[str, Any] = {
    "name": "month",
    "window": "1 mo",
    "time_zone": "America/New_York",
    "offset": "6 h",
    "retain": "40 d",
}
NOW_MS = 1_790_000_000_000
"""In September 2026."""


def test_a_view_of_a_calendar_is_stored_and_read_as_it_was_and_another_one_is_another_version(tmp_path: Path) -> None:
    begun = view_versions.begun(made(DEVICE, DAY, MONTH))
    log = Log(Local(tmp_path))
    log.write(0, begun)
    stored = log.at(0)
    assert stored == begun
    assert stored is not None
    assert [view.length for view in stored.views] == ["1 m", "1 d of Europe/Rome", "1 mo of America/New_York"]
    assert [view.retain_ms for view in stored.views] == [86_400_000, 90_000_000, 40 * 86_400_000]
    assert view_versions.changed(stored, made(DEVICE, DAY, MONTH), NOW_MS) is stored
    text = (tmp_path / "views" / "0").read_text()
    assert "zone" not in json.dumps([each for each in json.loads(text)["views"] if each["name"] == "device"])
    for change in ({"time_zone": "Europe/Berlin"}, {"offset": "6 h"}, {"window": "1 w"}, {"time_zone": None}):
        after = view_versions.changed(stored, made(DEVICE, {**DAY, **change}, MONTH), NOW_MS)
        assert [view.name for view in after.views] == ["device", "day", "day@2", "month"]


def test_a_change_of_tzdata_is_refused_where_windows_are_kept_and_followed_from_later_on() -> None:
    wanted = made(DEVICE, DAY)
    begun = view_versions.begun(wanted)

    def before(first: str, last: str) -> Versions:
        """As by a tzdata that had other rules in these months."""
        rules = np.frombuffer(b64decode(begun.views[1].zone_rules), "<u2").copy()
        rules[np.datetime64(first, "M").astype(int) : np.datetime64(last, "M").astype(int) + 1] ^= 1
        changed = begun.views[1].model_copy(update={"zone_rules": b64encode(rules.tobytes()).decode()})
        return replace(begun, views=(begun.views[0], changed))

    view_versions.require_rules(begun, wanted, NOW_MS)
    for harmless in (before("1970-01", "2026-08"), before("2026-10", "2109-12")):
        view_versions.require_rules(harmless, wanted, NOW_MS)
        after = view_versions.changed(harmless, wanted, NOW_MS)
        assert after == begun
        (line,) = view_versions.described(harmless, after)
        assert line == f"windows of the view day follow the rules of tzdata {VERSION} for Europe/Rome"
    with pytest.raises(CheckpointError) as refused:
        view_versions.require_rules(before("2026-09", "2026-09"), wanted, NOW_MS)
    assert str(refused.value).startswith(
        f"views.day: tzdata {VERSION} has other rules for Europe/Rome in 2026-09 than the windows of the checkpoint follow"
    )
    assert "Give the view another name" in refused.value.remedy
    view_versions.require_rules(before("2026-09", "2026-09"), made(DEVICE, {**DAY, "name": "days"}), NOW_MS)


def test_meta_has_the_calendar_and_what_a_reader_without_calendars_needs() -> None:
    document = json.loads(meta(made(DEVICE, DAY, MONTH)))
    minute, day, month = document["views"]
    assert document["tzdata"] == VERSION
    assert "calendar" not in minute
    assert "tzdata" not in json.loads(meta(made(DEVICE)))
    assert (day["window_ms"], day["slide_ms"]) == (25 * 3_600_000, 3_600_000)
    assert month["window_ms"] == (31 * 24 + 1) * 3_600_000
    of = {"days": 0, "months": 1, "time_zone": "America/New_York", "offset_ms": 6 * 3_600_000, "offset_months": 0}
    assert month["calendar"] == of
    contract_problems = list(jsonschema_rs.Draft202012Validator(CONTRACT["json"]["meta"]).iter_errors(document))
    assert contract_problems == []


ZONED: dict[str, Any] = {"name": "zoned", "by": ["device", "zone"], "window": "1 d", "time_zone": {"column": "zone"}}


def zoned(**changes: Any) -> Settings:
    return made({**ZONED, **changes}, columns={"zone": "zone"})


def test_a_view_with_the_zone_in_a_column_is_stored_published_and_refused_as_one_of_a_calendar(tmp_path: Path) -> None:
    begun = view_versions.begun(zoned())
    log = Log(Local(tmp_path))
    log.write(0, begun)
    stored = log.at(0)
    assert stored == begun
    assert stored is not None
    assert stored.views[0].length == "1 d of the zone in zone"
    assert view_versions.changed(stored, zoned(), NOW_MS) is stored
    for change in ({"time_zone": "Europe/Rome"}, {"offset": "6 h"}, {"window": "1 w"}):
        after = view_versions.changed(stored, zoned(**change), NOW_MS)
        assert [view.name for view in after.views] == ["zoned", "zoned@2"]
        with pytest.raises(SinkRefusedError, match="its published windows are 1 d of the zone in zone by device, zone"):
            require_views(zoned(**change), meta(zoned()))
    require_views(zoned(), meta(zoned()))
    document = json.loads(meta(zoned()))
    (view,) = document["views"]
    assert "calendar" not in view  # a reader that knows no other would look for days of one zone
    assert view["calendars"] == {"days": 1, "months": 0, "time_zone_column": "zone", "offset_ms": 0, "offset_months": 0}
    assert (view["window_ms"], view["slide_ms"]) == (31 * 3_600_000, 900_000)
    assert list(jsonschema_rs.Draft202012Validator(CONTRACT["json"]["meta"]).iter_errors(document)) == []


def test_a_change_of_any_zone_is_refused_where_windows_of_the_zones_of_keys_are_kept() -> None:
    begun = view_versions.begun(zoned())
    digests, names = begun.views[0].zone_rules.split(" ")
    rules = np.frombuffer(b64decode(digests), "<u2").copy()
    rules[np.datetime64("2026-09", "M").astype(int)] ^= 1
    text = f"{b64encode(rules.tobytes()).decode()} {names}"
    changed = begun.views[0].model_copy(update={"zone_rules": text})
    view_versions.require_rules(begun, zoned(), NOW_MS)
    with pytest.raises(CheckpointError, match=f"tzdata {VERSION} has other rules for a time zone in 2026-09"):
        view_versions.require_rules(replace(begun, views=(changed,)), zoned(), NOW_MS)


def test_a_prefix_with_windows_of_another_calendar_is_refused() -> None:
    published = meta(made(DAY))
    require_views(made(DAY), published)
    for change in ({"time_zone": "Europe/Berlin"}, {"offset": "6 h"}, {"window": "25 h", "time_zone": None}):
        with pytest.raises(SinkRefusedError, match="its published windows are 1 d of Europe/Rome by nothing"):
            require_views(made({**DAY, **change}), published)
    later = r"views.day is 1 d of Europe/Rome, 6 h later by nothing, its published windows are 1 d by nothing"
    with pytest.raises(SinkRefusedError, match=later):
        require_views(made({**DAY, "offset": "6 h"}), meta(made({"name": "day", "window": "1 d"})))

"""A backfill that cannot begin is refused before anything starts."""

from pathlib import Path

import pytest

from service.errors import SettingsError
from service.recompute.backfill import backfill, passes
from service.recompute.sources import Reach
from tests.stream.records import make_settings


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

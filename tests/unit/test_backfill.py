"""A backfill that cannot begin is refused before anything starts."""

from pathlib import Path

import pytest

from service.errors import SettingsError
from service.recompute.backfill import backfill
from tests.stream.records import make_settings


def test_a_view_that_does_not_exist_is_refused_before_spark_starts_or_another_run_is_fenced(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, redis={"url": "redis://127.0.0.1:1/0"})
    with pytest.raises(SettingsError, match=r"--view nowhere: there is no view with windows of this name\. Views: "):
        backfill(settings, (0, 1), ["nowhere"], print)

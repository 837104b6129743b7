"""When the limit on devices is noted, and which devices a list has."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import SparkFiles

from service.admission import device_limit
from service.admission.device_limit import DeviceLimit
from service.checkpoint.event_time import NO_LIST
from service.spark.files import Local

NO_SPARK: Any = None


def limit(devices: int, folder: Path) -> DeviceLimit:
    return DeviceLimit(NO_SPARK, "", Local(folder), devices, buckets=2)


def test_the_state_is_full_from_the_limit_on_and_has_room_again_well_below_it(tmp_path: Path) -> None:
    it = limit(100, tmp_path)
    assert it.list_after(0, NO_LIST, [(0, 50), (1, 49)]) == NO_LIST
    assert it.list_after(1, NO_LIST, [(0, 51)]) == 1
    assert it.list_after(2, 1, []) == 1
    assert it.list_after(3, 1, [(0, 46)]) == 1, "95 are not enough room"
    assert it.list_after(4, 1, [(0, 45)]) == NO_LIST
    assert it.list_after(5, NO_LIST, [(1, 1_000)]) == 5


def test_after_a_restart_a_full_state_stays_full_until_all_buckets_have_told_their_devices(tmp_path: Path) -> None:
    it = limit(100, tmp_path)
    assert it.list_after(8, 7, [(0, 1)]) == 7
    assert it.list_after(9, 7, [(1, 1)]) == NO_LIST


def test_without_a_limit_everybody_is_admitted(tmp_path: Path) -> None:
    it = limit(0, tmp_path)
    assert it.list_after(0, NO_LIST, [(0, 1 << 40)]) == NO_LIST
    assert it.list_after(1, 7, []) == NO_LIST, "it was taken away with a restart"
    assert it.distribute(NO_LIST) == ""


@pytest.mark.parametrize("count", [0, 1, 1_000])
def test_only_listed_devices_are_known(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"d\u00e9vice {number}" for number in range(count)]
    np.sort(device_limit.hashes(pa.array(names, pa.string()))).tofile(tmp_path / "list")
    monkeypatch.setattr(SparkFiles, "get", lambda _: str(tmp_path / "list"))
    device_limit._lists.clear()
    asked = pa.array(["", *names[::-1], "device", "d\u00e9vice"], pa.string())
    assert device_limit.are_known(asked, "list").tolist() == [False, *[True] * count, False, False]
    device_limit._lists.clear()


def test_a_worker_keeps_the_newest_list_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def place(name: str) -> str:
        read.append(name)
        return str(tmp_path / name)

    for name in ("devices-one-1", "devices-other-1", "devices-one-2"):
        device_limit.hashes(pa.array([name])).tofile(tmp_path / name)
    monkeypatch.setattr(SparkFiles, "get", place)
    device_limit._lists.clear()
    asked = pa.array(["devices-one-1", "devices-other-1", "devices-one-2"])
    for _ in range(2):
        assert device_limit.are_known(asked, "devices-one-1").tolist() == [True, False, False]
        assert device_limit.are_known(asked, "devices-other-1").tolist() == [False, True, False]
    assert device_limit.are_known(asked, "devices-one-2").tolist() == [False, False, True]
    assert read == ["devices-one-1", "devices-other-1", "devices-one-2"]
    assert len(device_limit._lists) == 2
    device_limit._lists.clear()

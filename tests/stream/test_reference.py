"""A reference that changes while the pass runs, and limits of a device's own, on real Spark."""

from dataclasses import replace

import pytest

from service.reference.attributes import Serving
from tests.stream.records import make_settings, reading
from tests.stream.script import Add, Expect, Restart, Swap, run

pytestmark = pytest.mark.spark

SITES = [{"name": "site", "by": ["site"], "window": "1 m"}, {"name": "device", "by": ["device"], "window": "1 m"}]
SOURCE = {"url": "jdbc:sqlite:unused", "query": "unused"}


def site(key, measure="temperature"):
    return ("site", measure, key, 0)


def test_a_device_that_moves_in_the_middle_of_a_window_counts_where_it_was_and_where_it_is(spark, tmp_path):
    run(
        spark,
        make_settings(tmp_path, views=SITES, reference=SOURCE),
        tmp_path,
        [
            Swap([("a", "north")]),
            Add(reading("a", 0, 10.0), reading("a", 10, 20.0), reading("new", 5, 1.0)),
            Expect(
                windows={
                    site("north"): (2, 15.0),
                    site("(none)"): (1, 1.0),
                    ("device", "temperature", "a", 0): (2, 15.0),
                    ("device", "temperature", "new", 0): (1, 1.0),
                }
            ),
            Swap([("a", "south"), ("new", "south")]),
            Restart(),
            # One of them is from before the swap by its time: when it is read is what counts.
            Add(reading("a", 9, 60.0), reading("a", 20, 60.0), reading("new", 20, 3.0)),
            Expect(
                windows={
                    site("north"): (2, 15.0),
                    site("south"): (3, 41.0),
                    site("(none)"): (1, 1.0),
                    ("device", "temperature", "a", 0): (4, 37.5),
                    ("device", "temperature", "new", 0): (2, 2.0),
                },
                sessions={("a", 0): "open", ("new", 5): "open"},
            ),
        ],
        Serving(tmp_path / "reference", ("site",)),
    )


def test_a_device_has_the_session_gap_and_the_interval_that_the_reference_says(spark, tmp_path):
    limits = {"session_gap": "gap", "expected_interval": "every"}
    run(
        spark,
        make_settings(tmp_path, reference={**SOURCE, **limits}),
        tmp_path,
        [
            Swap([("slow", "60 s", "5000"), ("fast", "10 s", None), ("plain", None, None)]),
            Add(reading("slow", 0), reading("fast", 0), reading("fast", 11), reading("plain", 0)),
            Expect(sessions={("slow", 0): "open", ("fast", 0): "open", ("fast", 11): "open", ("plain", 0): "open"}),
            Add(reading("other", 20), reading("other", 40)),  # the watermark is at 15
            Expect(
                devices={"slow": ("quiet", 20.0), "fast": ("online", 20.0), "plain": ("online", 20.0)},
                sessions={
                    ("slow", 0): "open",
                    ("fast", 0): "closed",
                    ("fast", 11): "open",
                    ("plain", 0): "open",
                    ("other", 20): "open",
                },
            ),
            Restart(),
            Add(reading("other", 60), reading("other", 80)),  # 55
            Expect(devices={"slow": ("quiet", 20.0), "fast": ("offline", 20.0), "plain": ("offline", 20.0)}),
            Add(reading("slow", 59)),
            Expect(
                devices={"slow": ("online", 20.0)},
                sessions={
                    ("slow", 0): "open",
                    ("fast", 0): "closed",
                    ("fast", 11): "closed",
                    ("plain", 0): "closed",
                    ("other", 20): "open",
                },
            ),
            Add(*[reading("other", seconds) for seconds in range(100, 160, 20)]),  # 115
            Expect(devices={"slow": ("quiet", 20.0)}),
            Add(*[reading("other", seconds) for seconds in range(150, 190, 10)]),  # 155
            Expect(devices={"slow": ("offline", 20.0)}),
        ],
        Serving(tmp_path / "reference", ("gap", "every")),
    )


def test_a_swap_is_seen_by_admission(spark, tmp_path):
    ranges = {"ranges": {"temperature": ["low", "high"]}}

    run(
        spark,
        make_settings(tmp_path, reference={**SOURCE, **ranges}, admission={"unknown_device": "reject"}),
        tmp_path,
        [
            Swap([("a", "0", "30")]),
            Add(reading("a", 0, 20.0), reading("a", 1, 31.0), reading("b", 1, 31.0)),
            Expect(rejects=["out_of_range", "unknown_device"]),
            Swap([("a", "0", "32"), ("b", None, None)]),
            Add(reading("a", 2, 31.0), reading("a", 3, 33.0), reading("b", 3, 31.0)),
            Expect(
                rejects=["out_of_range", "unknown_device", "out_of_range"],
                windows={("device", "temperature", "a", 0): (2, 25.5), ("device", "temperature", "b", 0): (1, 31.0)},
            ),
        ],
        Serving(tmp_path / "reference", ("low", "high")),
    )


@pytest.mark.parametrize("unknown", ["keep", "reject"])
def test_an_id_that_is_no_utf8_is_rejected_and_disturbs_no_look_up(spark, tmp_path, unknown):
    """The reference is asked for the devices of all records, also of those that are rejected."""
    ranges = {"ranges": {"temperature": ["low", "high"]}}
    no_text = [b"\xff\xfe\xfd", b"\xed\xa0\x80", b"\xc0\x80x", b"\xf8\x88\x80", b"\xe2\x82\xff"]
    records = [reading("xxx", second) for second in range(len(no_text))]
    records = [replace(r, value=r.value.replace(b"xxx", bad), key=bad) for r, bad in zip(records, no_text, strict=True)]
    run(
        spark,
        make_settings(tmp_path, reference={**SOURCE, **ranges}, admission={"unknown_device": unknown}),
        tmp_path,
        [
            Swap([("a", "0", "30")]),
            Add(reading("a", 0, 20.0), *records, reading("a", 1, 31.0), reading("a", 2, 22.0)),
            Expect(
                windows={("device", "temperature", "a", 0): (2, 21.0)},
                rejects=["out_of_range", *["undecodable"] * len(no_text)],
            ),
        ],
        Serving(tmp_path / "reference", ("low", "high")),
    )

"""How long Redis keeps a window: `retain` from its end on, whenever its readings came."""

import time

import pytest

from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

RETAIN_MS = WINDOW_MS = 60_000
VIEWS = [{"name": "device", "by": ["device"], "window": "1 m", "retain": "1 m"}]
A, B = (f"device:temperature:{device}:{BASE_MS}" for device in "ab")


@pytest.mark.thorough
@pytest.mark.silent("1.4")
def test_a_window_of_one_reading_at_its_start_lives_for_retain_after_its_end(parts: Parts) -> None:
    """Of the two devices one sends at the start of a window, the other also at its end."""
    world = World(*parts, views=VIEWS)
    ahead_ms = world.settings.admission.max_ahead_ms

    def kept_ms(name: str) -> int:
        return int(world.redis.pttl(world.key(name)))

    began_s = time.monotonic()
    world.term(reading("a", 0), reading("b", 0), reading("b", 59))
    a, b, keys = kept_ms(f"window:{A}"), kept_ms(f"window:{B}"), kept_ms("keys:device")
    took_ms = round((time.monotonic() - began_s) * 1000)
    longest_ms = WINDOW_MS + RETAIN_MS + ahead_ms
    assert longest_ms - took_ms <= min(a, keys) <= longest_ms
    assert longest_ms - 59_000 - took_ms <= b <= longest_ms - 59_000, "no longer than that: it takes memory"

    # It is final half a minute after its end. If Redis loses it then, it comes back for the rest of its time.
    world.term(reading("c", 90 + world.settings.admission.watermark_delay_ms / 1000))
    before = world.values()[f"window:{A}"]
    world.lose()
    world.term()
    assert world.values()[f"window:{A}"] == before
    assert 0 < kept_ms(f"window:{A}") <= RETAIN_MS // 2 + ahead_ms
    world.redis.close()

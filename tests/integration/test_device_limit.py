"""Invented ids fill the state up to its limit; the devices that it has go on, and every reading of others can be found."""

import pytest

from load.judge.compare import compare
from service.rejects import reject_log
from tests.integration.world import Parts, World
from tests.stream.records import Record, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

KNOWN = 12


def readings(names: list[str], second: float, ahead: float = 0.0) -> list[Record]:
    return [reading(name, second + ahead, 20.0, at=second) for name in names]


@pytest.mark.thorough
def test_a_flood_of_ids_disturbs_no_device_that_is_known(parts: Parts) -> None:
    world = World(*parts, admission={"max_delay": "2 m", "max_devices": KNOWN})
    known = [f"known-{number}" for number in range(KNOWN)]
    world.term(*readings(known, 0))
    # Full from here on, also for a writer that begins with the checkpoint alone.
    flood = [f"stranger-{number}" for number in range(500)]
    world.term(*readings(flood, 1), *readings(known, 1), *readings(flood, 1, ahead=3_600))
    world.term(*readings(flood[:9], 2), *readings(known, 2))
    verdict = compare(world.config, may_be_refused=True)
    assert verdict.ok, "\n".join(verdict.examples)
    assert (verdict.refused, verdict.compared["devices"]) == (509, KNOWN)
    reasons = [each.reason for each in reject_log.read(world.settings.kafka)]
    assert (reasons.count("too_many_devices"), reasons.count("early")) == (509, 500)
    assert {key.rsplit(":", 1)[1] for key in world.redis.scan_iter(world.key("device:*"))} == set(known)
    assert all(int(value["count"]) == 3 for name, value in world.values().items() if name.startswith("session:"))

    # What Redis loses comes back as it was.
    before = set(world.values())
    world.lose()
    world.term(*readings(known, 2.5))
    assert set(world.values()) == before
    assert all(int(value["count"]) == 4 for name, value in world.values().items() if name.startswith("session:"))

    # A batch that is published and not committed is repeated with the same note; without a limit all are admitted.
    admission = world.settings.admission.model_copy(update={"max_devices": 0})
    world.settings = world.settings.model_copy(update={"admission": admission})
    world.term(*readings(known, 3))
    world.term(*readings(["late-comer"], 4))
    assert "session:late-comer" in " ".join(world.values())
    world.redis.close()

"""Data quality, end to end: profiled from a real topic, checked beside the real service, named when a measure drifts."""

import json
import re
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from load.servers.kafka import LOG_APPEND_TIME, Broker
from load.servers.redis import Redis
from service import settings
from service.cli import main
from service.errors import SourceError, SourceRefusedError
from service.quality import profile
from tests.integration.daemon import STARTS_S, DaemonWorld, Service, until
from tests.topics import send

pytestmark = pytest.mark.integration


class Profiled(DaemonWorld):
    """A world whose settings name expectations."""

    def __init__(self, broker: Broker, redis: Redis, folder: Path, topic: str) -> None:
        super().__init__(broker, redis, folder, topic)
        self.suite = folder / "readings.expectations.json"
        quality = '\n[quality]\nexpectations = "readings.expectations.json"\nevery = "2 s"\nsample = 400\n'
        self.config.write_text(self.config.read_text() + quality)

    def readings(self, count: int, *, shift: float = 0.0) -> None:
        """Like `send`, of another level; one record in a hundred is nothing that decodes."""
        values = []
        for number in range(count):
            reading = {"device_id": f"d{number % 20}", "event_time": time.time_ns() // 1_000_000}
            value = json.dumps({**reading, "temperature": number % 7 + shift}).encode()
            values.append(value if number % 100 < 99 else b"no JSON")
        send(self.broker, self.topic, values, 2)
        self.sent += count - count // 100


def expectations(service: Service) -> dict[str, float]:
    """tidemark_quality_expectation_met by label."""
    families = text_string_to_metric_families(service.get("/metrics")[1])
    return {
        sample.labels["expectation"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "tidemark_quality_expectation_met"
    }


def test_a_topic_without_readings_is_named(broker_server: Broker, redis_server: Redis, tmp_path: Path) -> None:
    world = Profiled(broker_server, redis_server, tmp_path, "quality-none")
    loaded = settings.load(world.config)
    with pytest.raises(SourceRefusedError, match="quality-none does not exist"):
        profile.profile(loaded, world.suite, 100, print)
    broker_server.create_topic(world.topic, 2, LOG_APPEND_TIME)
    with pytest.raises(SourceError, match="quality-none: there is no record to draw expectations from"):
        profile.profile(loaded, world.suite, 100, print)
    assert not world.suite.exists()


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_a_drifted_measure_is_named_while_the_stream_goes_on(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = Profiled(broker_server, redis_server, tmp_path, "quality")
    broker_server.create_topic(world.topic, 2, LOG_APPEND_TIME)
    world.readings(1_200)
    assert main(["profile", "--config", str(world.config), "--readings", "1000"]) == 0
    drawn = capsys.readouterr().out
    assert re.search(r"^temperature mean between +min_value [12]\.\d+, max_value [34]\.\d+$", drawn, re.MULTILINE)
    assert drawn.endswith(f"drawn from 1000 records, written to {world.suite}\n")
    suite = json.loads(world.suite.read_text())
    assert suite["meta"]["drawn_from"] == {"records": 1_000, "admitted": 990, "pieces": 2}
    assert main(["profile", "--config", str(world.config)]) == 2
    assert "is there already" in capsys.readouterr().err

    with world.start("service") as service:
        until(lambda: service.get("/quality")[0] != 0, STARTS_S, "the server is there")
        assert service.get("/quality")[0] == 503
        until(lambda: service.metric("quality_checked_timestamp_seconds"), STARTS_S, "a sample is checked")
        assert set(expectations(service).values()) == {1.0}
        assert service.metric("quality_expectations_met_ratio") == 1
        assert service.metric("quality_sampled_readings") == 396
        status, page = service.get("/quality")
        assert (status, "compiled by Great Expectations" in page) == (200, True)
        assert ("text-success" in page, "fa-times text-danger" in page) == (True, False)

        world.readings(400, shift=50.0)
        until(lambda: service.metric("quality_expectations_met_ratio") < 1, 120, "the drift is seen")
        until(lambda: not expectations(service)["temperature mean between"], 120, "the drift is named")
        unmet = {label for label, value in expectations(service).items() if not value}
        assert unmet == {"temperature between", "temperature mean between"}
        assert "temperature mean between" in json.loads(service.get("/readyz")[1])["notes"]["quality"]
        assert "fa-times text-danger" in service.get("/quality")[1]

        # What is edited is used from the next check on; what cannot be used is counted, and in nobody's way.
        text = world.suite.read_text()
        world.suite.write_text("no JSON")
        until(lambda: service.metric("quality_failures_total"), 120, "the failure is counted")
        world.suite.write_text(re.sub(r".*expect_column_mean.*temperature.*\n", "", text))
        until(lambda: "temperature mean between" not in expectations(service), 120, "the edit is used")
        world.readings(100)
        until(lambda: world.counted() == world.sent, 120, "all readings are counted")
        assert service.metric("query_restarts_total") == 0
        assert "the expectations file is not JSON" in service.log.read_text()
        assert service.stop() == 0

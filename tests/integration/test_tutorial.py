"""The commands of docs/tutorial.md, one after the other, on the parts that `make tutorial` starts."""

import os
import re
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from load.servers.child_process import spawn
from load.servers.server_process import PATIENCE, free_port
from load.tutorial.parts import Parts
from service.redis.keys import Keys

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400 * PATIENCE), pytest.mark.thorough]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
WITHIN_S = 300.0 * PATIENCE


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with Parts(tmp_path / "tutorial") as running:
        yield running


def commands() -> str:
    """The shell commands of the page as one script, which ends at the first that fails."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 6
    # The services of the page end with the script, also if a command fails.
    return "\n".join(
        ["set -euo pipefail", "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT", ". ./parts.env", *blocks]
    )


def test_its_commands_lead_to_values_of_both_topics_and_of_a_view_of_one_s_own(parts: Parts) -> None:
    folder = parts.folder
    (folder / "commands.sh").write_text(commands())
    environment = {**os.environ, "TIDEMARK_METRICS__PORT": str(free_port())}
    output = folder / "output"
    until_s = time.monotonic() + WITHIN_S
    script = spawn(["bash", "commands.sh"], cwd=folder, log=output, environ=environment)
    try:
        status = script.wait(until_s - time.monotonic())
    except subprocess.TimeoutExpired:
        os.killpg(script.pid, signal.SIGTERM)
        script.wait()
        raise
    logs = "\n".join(each.read_text() for each in [output, *folder.glob("*.log")])
    assert status == 0, logs
    shown = output.read_text()
    assert "harbour: " in shown
    assert "harbour, P250: at most " in shown
    assert "NOT SURE" not in (folder / "tidemark.toml").read_text() + (folder / "meters.toml").read_text()

    pumps = tomllib.loads((folder / "tidemark.toml").read_text())
    assert pumps["input"] == {
        "reader_schema": 1,
        "device_id": "pump.serial",
        "event_time": "measured_at",
        "measures": {"pressure_bar": "values.pressure_bar", "flow_l_s": "values.flow_l_s"},
    }
    assert [view["name"] for view in pumps["views"]] == ["device", "plant", "model", "fast"]
    meters = tomllib.loads((folder / "meters.toml").read_text())
    assert meters["input"]["measures"] == {"watts": "power.watts", "volts": "power.volts"}
    client = parts.redis.client(decode_responses=True)
    pump = client.hgetall(Keys("tidemark").device("P-003"))
    assert (pump["ref.plant"], pump["ref.model"]) == ("harbour", "P100")
    assert client.hget(Keys("meters").device("meter-1"), "volts") == "230.5"

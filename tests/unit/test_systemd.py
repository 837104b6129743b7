"""The units of systemd: what the processes may do, and what a JVM cannot do without."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).resolve().parents[2] / "deploy" / "systemd").glob("*.service"))
MOST = 2.0
"""Exposure of 10 by `systemd-analyze security`; without hardening the units had 9.2."""


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_may_write_to_its_own_folders_only_and_the_jvm_may_compile(unit: Path) -> None:
    options = dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE))
    assert options["ProtectSystem"] == "strict"
    assert options["NoNewPrivileges"] == options["PrivateTmp"] == "true"
    assert options["CapabilityBoundingSet"] == ""
    assert options["StateDirectory"] == "tidemark", "the checkpoint, and the folders of master and worker"
    assert {"AF_UNIX", "AF_INET", "AF_INET6"} <= {*options["RestrictAddressFamilies"].split()}
    assert (options["SystemCallFilter"], options["SystemCallErrorNumber"]) == ("@system-service", "EPERM")
    assert not {"MemoryDenyWriteExecute", "ProcSubset"} & {*options}
    if "Restart" in options:
        assert options["LimitNOFILE"] == "65536"


def test_the_control_socket_is_where_commands_outside_of_the_units_tmp_find_it() -> None:
    texts = {unit.stem: unit.read_text(encoding="utf-8") for unit in UNITS}
    assert "\nRuntimeDirectory=tidemark\n" in texts["tidemark"]
    assert "\nRuntimeDirectory=tidemark-worker\n" in texts["tidemark-worker"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_calls_the_exposure_of_a_unit_small(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", said)
    assert exposure is not None, said
    assert float(exposure[1]) <= MOST

"""`tidemark status`: one screen about a running service, within 100 columns, with the next command."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.main import get_command

from service.cli import entry, main
from service.cli.command import app
from service.commands.status import FIRING, WIDTH, lines
from service.errors import SinkError
from service.monitoring import attention
from service.monitoring.alert_rules import RULES
from tests.reports import REPORT
from tests.served import Served
from tests.unit.test_cli import GOOD

CONFIG = Path("plant 7.toml")
LONG = "could not connect to server: " + "the host does not answer, " * 8


class Service(Served):
    def shown(self) -> list[str]:
        return list(lines(self.monitor.document(), self.monitor.conditions.document(), 3, CONFIG))


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service("plant7")
    made.run()
    yield made
    made.server.close()


def row(shown: list[str], name: str) -> str:
    return next(line for line in shown if line.startswith(f"  {name} "))


def test_state_figures_outlets_and_the_last_batches_are_on_one_screen_of_100_columns(service: Service) -> None:
    for number in range(1_000_000, 1_000_005):
        phases = dict.fromkeys(("cut", "compute", "publish", "deliver", "progress", "note"), number / 7)
        service.batch(number, 123_456, phases)
    service.metrics.lags({"t": {0: 400, 1: 17}})
    service.metrics.asked(1)
    service.metrics.rejects.labels("late").inc(12)
    service.status.failed(SinkError(LONG))
    outlet = {"pending_batches": 1, "pending_bytes": 3_000, "age_s": 21_600, "error": LONG, "refused_rows": 1}
    whole = {**outlet, "pending_batches": 0, "error": "", "refused_rows": 0}
    service.status.outlets = lambda: {"history": outlet, "topic": whole}
    shown = service.shown()
    assert shown[0] == "plant7: running, epoch 3"
    assert "417 records, asked 0 s ago" in row(shown, "lag")
    assert "records/s" in row(shown, "rate")
    assert "late" in row(shown, "rejects")
    assert "last 10 min" in row(shown, "rejects")
    assert "ago" in row(shown, "watermark")
    assert "history lacks 1 batch (2.93 KiB), the oldest for 6 h; is away: could not" in row(shown, "outlet")
    assert any("topic has everything" in line for line in shown)
    assert "SINK: could not connect" in row(shown, "last error")
    assert all(len(line) <= WIDTH for line in shown), "also with six phases and large batches"
    assert [line.split()[0] for line in shown if line.split()[:1] and line.split()[0].startswith("100000")] == [
        "1000002",
        "1000003",
        "1000004",
    ]


def test_phases_that_took_least_are_left_out_where_a_line_would_be_longer(service: Service) -> None:
    phases = {f"phase_of_a_long_name_{number}": float(number) for number in range(6)}
    service.status.batch(replace(REPORT, phases=phases))
    shown = service.shown()
    assert all(len(line) <= WIDTH for line in shown)
    head = next(line for line in shown if "finished" in line)
    assert "phase_of_a_long_name_5" in head
    assert "phase_of_a_long_name_0" not in head


def test_what_is_over_its_limit_has_its_value_its_limit_and_the_next_command(service: Service) -> None:
    assert service.shown()[-1] == "nothing is over its limit"
    service.metrics.unreadable.set(4)
    service.metrics.reference_max_age.set(86_400)
    service.metrics.reference("abc", 7, lambda: 43_200.0)
    shown = service.shown()
    begins = shown.index("over its limit:")
    assert shown[begins + 1 : begins + 3] == [
        "  TidemarkUnreadable (page) for 0 s",
        "      4 offsets end every process of plant7 that reads them: it goes on when they are skipped (4,",
    ]
    assert any("12 h, limit 6 h" in line for line in shown), "not 4.32e+04"
    assert shown[-2:] == [
        "next: tidemark skip --help --config 'plant 7.toml'",
        "next: tidemark check --config 'plant 7.toml'",
    ]
    assert all(len(line) <= WIDTH for line in shown)


def test_a_service_that_does_not_run_and_has_no_alert_yet_is_to_be_checked(service: Service) -> None:
    service.status.restarts()
    assert service.shown()[-1] == "next: tidemark check --config 'plant 7.toml'"


def test_the_command_of_every_rule_is_one_that_tidemark_has() -> None:
    entry.load()
    root = get_command(app)
    for rule in RULES:
        words = [*shlex.split(rule.command), "--config", "x"]
        found = root.commands[words.pop(0)]  # type: ignore[attr-defined]
        if hasattr(found, "commands"):
            found = found.commands[words.pop(0)]
        found.make_context(rule.command, words, resilient_parsing=True)


def test_amounts_have_the_unit_of_their_metric() -> None:
    def amount(expr: str, value: float) -> str:
        return attention.amount({"expr": expr}, value)

    assert amount("max(tidemark_lag_age_seconds) > 60", 21_600) == "6 h"
    assert amount("max(tidemark_lag_age_seconds) > 60", 0) == "0 s"
    assert amount("tidemark_outlet_pending_bytes > 1", 2.5 * 2**30) == "2.5 GiB"
    assert amount("sum(tidemark_lag_records) > 1", 5_000_000) == "5,000,000"
    assert amount("changes(tidemark_watermark_timestamp_seconds[10m]) == 0", 2) == "2"


@pytest.mark.parametrize(("words", "exits"), [((), 0), (("--strict",), FIRING), (("--strict", "--json"), FIRING)])
def test_a_script_may_ask_whether_an_alert_fires(
    service: Service, tmp_path: Path, words: tuple[str, ...], exits: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = service.settings_file(tmp_path, GOOD)
    assert main(["status", "--config", str(path), *words]) == 0
    service.metrics.unreadable.set(4)
    assert main(["status", "--config", str(path), *words]) == exits
    assert "Traceback" not in capsys.readouterr().err


CLIENTS = ("pyspark", "py4j", "confluent_kafka", "redis", "prometheus_client", "numpy", "pyarrow")


def test_status_and_show_import_what_they_need(service: Service, tmp_path: Path) -> None:
    """The import of each of these takes a part of the half second that an operator waits."""
    path = service.settings_file(tmp_path, GOOD)

    def imported(*words: str) -> set[str]:
        program = (
            f"import sys; from service.cli import main; main({[*words, '--config', str(path)]!r}); "
            "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
        )
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return {name for name in CLIENTS if name in ended.stderr.split()}

    assert imported("status") == set()
    assert imported("checkpoint", "show") == {"py4j"}
    service.server.close()
    assert imported("status") == {"redis"}, "no service answers"

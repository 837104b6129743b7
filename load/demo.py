"""The demo: the main job on embedded servers, watched live and then checked, value by value.

    python -m load.demo --for 60s [--rate 5000] [--devices 10000] [--seed 7] [--json FILE]

A broker, Redis, a reference database and a seeded generator are started, the service is submitted with spark-submit, and
a view shows what happens. In the end the load stops, the service publishes all of it and is stopped, and everything in
Redis and in the rejects topic is compared with the oracle, which has read the topic for itself. Exit status 0 only when
nothing differs.
"""

import argparse
import contextlib
import json
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.options import seconds_of
from load.judge import published
from load.judge.compare import compare
from load.judge.verdict import Verdict
from load.report import print_error
from load.servers.child_process import Child, spawn
from load.servers.machine import check_machine
from load.testbed import ROOT, TOPIC, Testbed, percentile
from schemas import contract
from service.errors import TidemarkError
from tidemark_client import Client, ContractError, queries

FOLDER = ROOT / ".build" / "demo"
VIEWS: tuple[Mapping[str, Any], ...] = (
    {"name": "device", "by": ["device"], "window": "1 m", "retain": "1 d"},
    {"name": "type", "by": ["type"], "window": "10 s", "retain": "1 d"},
    {"name": "site", "by": ["site"], "window": "1 m", "slide": "10 s", "retain": "1 d"},
    {"name": "all", "window": "10 s", "retain": "1 d"},
)
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "input": {"measures": {"temperature": "temperature", "power": "power"}},
    "admission": {"max_delay": "8 s", "max_ahead": "2 s", "unknown_device": "reject"},
    "sessions": {"gap": "10 s", "max_duration": "10 m", "retain": "1 d"},
    "redis": {"feed_length": 200_000},
}
TICK_S = 0.5
OPENED, CLOSED = (f'tidemark_sessions_total{{change="{change}"}}' for change in ("opened", "closed"))
LINE_EVERY_S = 5.0
"""Between two lines where there is no terminal to draw on."""


@dataclass
class Sample:
    """One look at the service: its metrics and what an application would read from Redis."""

    at: float
    metrics: dict[str, float]
    sites: list[tuple[str, str, str]]

    def sum(self, name: str) -> float:
        """Of a metric over its labels."""
        return math.fsum(v for k, v in self.metrics.items() if k == name or k.startswith(name + "{"))


@dataclass
class Summary:
    """What `--json` writes; latencies are from the broker's time for a reading to Redis having acknowledged it."""

    ok: bool
    seconds: float
    flow_started_s: float
    sent: int
    readings: int
    admitted: int
    rejects: dict[str, int]
    windows: int
    windows_final: int
    sessions: int
    sessions_closed: int
    devices: int
    batches: int
    mismatches: int
    contract_violations: int
    latency_ms: dict[str, float]
    service_exit: int
    seed: int
    rate: float
    examples: list[str]


class Demo:
    """One run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.console = Console(highlight=False)
        fleet = Fleet(args.seed, fleet_settings(args))
        self.testbed = Testbed(FOLDER, fleet, views=VIEWS, sections=SECTIONS, master=args.master)
        self.generator_log = self.testbed.folder / "generator.log"
        self.began = time.monotonic()
        self.first: Sample | None = None
        self.last: Sample | None = None

    def run(self) -> Summary:
        """Everything, in order; the parts are ended whatever happens."""
        with self.testbed as testbed:
            self.say(f"broker {testbed.broker.bootstrap}, redis {testbed.redis.url}, all files in {testbed.folder}")
            testbed.start_service()
            self.say(f"service submitted, its metrics: http://127.0.0.1:{testbed.metrics_port}/metrics")
            testbed.wait(lambda: testbed.metrics().get("tidemark_query_running"), 120, "the query to start")
            first_s = time.monotonic() - self.began
            self.say(f"the query runs after {first_s:.1f} s; {self.args.rate:.0f} readings a second from now on")
            generator = self.start_generator()
            self.watch(generator)
            sent = self.generator_summary(generator)
            self.say("the load has stopped; waiting until all of it is published")
            testbed.wait_published({int(p): end for p, (_, end) in sent["offsets"].items()})
            sample = self.look()
            status = testbed.stop_service()
            self.say(f"the service has stopped with status {status}; comparing all of Redis with the oracle")
            verdict = compare(testbed.config)
            shards = testbed.settings["redis"].get("shards", 1)
            with testbed.redis_client() as client:
                violations = contract.check(client, "tidemark", shards)
                summary = self.summarise(sample, sent, verdict, [str(each) for each in violations], status, first_s)
                hashes = published.hashes(client, "tidemark", ("window", "session"), shards=shards)
                closed = Counter(key.split(":")[1] for key, fields in hashes if fields["closed_by"])
                summary.windows_final, summary.sessions_closed = closed["window"], closed["session"]
        return summary

    def say(self, text: str) -> None:
        """A line with the time since the start."""
        self.console.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/]  {text}", soft_wrap=True)

    def start_generator(self) -> Child:
        """A process of its own, as in real life."""
        args = self.args
        command = [sys.executable, "-m", "load.fleet.generator", "--bootstrap", self.testbed.broker.bootstrap]
        command += ["--topic", TOPIC, "--seed", str(args.seed), "--rate", str(args.rate)]
        command += ["--devices", str(args.devices), "--for", f"{args.seconds}s", *_fleet_options(args)]
        return spawn(command, cwd=ROOT, log=self.generator_log)

    def generator_summary(self, generator: Child) -> dict[str, Any]:
        """End the generator, which flushes first; return its summary."""
        if generator.poll() is None:
            os.kill(generator.pid, signal.SIGTERM)
        generator.wait(60)
        lines = [line for line in self.generator_log.read_text().splitlines() if line.startswith("{")]
        if not lines:
            message = f"The generator said nothing; its log: {self.generator_log}"
            raise TidemarkError(message)
        summary: dict[str, Any] = json.loads(lines[-1])
        return summary

    def watch(self, generator: Child) -> None:
        """Show what happens until the generator is done."""
        if not self.console.is_terminal:
            shown = 0.0
            while generator.poll() is None:
                self.look()
                if time.monotonic() - shown >= LINE_EVERY_S:
                    shown = time.monotonic()
                    self.say(self.line())
                time.sleep(TICK_S)
            return
        with Live(console=self.console, refresh_per_second=4) as live:
            while generator.poll() is None:
                self.look()
                live.update(self.panel())
                time.sleep(TICK_S)

    def look(self) -> Sample:
        """Take a sample."""
        metrics = self.testbed.metrics()
        sites: list[tuple[str, str, str]] = []
        with (
            contextlib.suppress(ContractError),
            Client.from_url(self.testbed.redis.url) as client,
        ):  # before the first batch
            keys = [key for key, _ in client.keys("site", limit=10)]
            newest = client.ask_all(queries.latest_complete("site", key, "temperature") for key in keys)
            sites = [(each.key, f"{each.mean:.2f}", str(each.count)) for each in newest if each is not None]
        self.last = Sample(time.monotonic(), metrics, sorted(sites, key=lambda s: -float(s[1])))
        if self.first is None and self.last.sum("tidemark_records_total"):
            self.first = self.last
        return self.last

    def figures(self) -> list[tuple[str, str]]:
        """The view's numbers, by name."""
        now, first = self.last, self.first
        if now is None or first is None:
            return [("readings", "none yet")]
        took = max(now.at - first.at, 0.001)
        records = now.sum("tidemark_records_total")
        rate = (records - first.sum("tidemark_records_total")) / took
        behind_s = time.time() - now.metrics.get("tidemark_watermark_timestamp_seconds", math.nan)
        return [
            ("readings", f"{records:,.0f}"),
            ("rate", f"{rate:,.0f}/s"),
            ("lag", f"{now.sum('tidemark_lag_records'):,.0f}"),
            ("batch", f"{now.metrics.get('tidemark_batch', 0):.0f}"),
            ("watermark", f"{behind_s:.1f} s ago" if behind_s < 1e6 else "none yet"),
            ("p50", f"{percentile(now.metrics, 0.5):.0f} ms"),
            ("p99", f"{percentile(now.metrics, 0.99):.0f} ms"),
            ("rejects", f"{now.sum('tidemark_rejects_total'):,.0f}"),
            ("sessions opened", f"{now.metrics.get(OPENED, 0):,.0f}"),
            ("closed", f"{now.metrics.get(CLOSED, 0):,.0f}"),
        ]

    def line(self) -> str:
        """The figures on one line."""
        return "  ".join(f"{name} {value}" for name, value in self.figures())

    def panel(self) -> Group:
        """The figures, the warmest sites and the rejects, as tables."""
        figures, sites, rejects = Table(box=None), Table(title="site, last minute"), Table(title="rejects")
        for name, _ in self.figures():
            figures.add_column(name, justify="right")
        figures.add_row(*[value for _, value in self.figures()])
        for name in ("site", "mean temperature", "readings"):
            sites.add_column(name, justify="right")
        rejects.add_column("reason")
        rejects.add_column("records", justify="right")
        if self.last is not None:
            for row in self.last.sites:
                sites.add_row(*row)
            for reason, count in _by_label(self.last.metrics, "tidemark_rejects_total").items():
                if count:
                    rejects.add_row(reason, f"{count:,.0f}")
        side_by_side = Table.grid(padding=(0, 4))
        side_by_side.add_row(sites, rejects)
        return Group(figures, side_by_side)

    def summarise(
        self,
        sample: Sample,
        sent: Mapping[str, Any],
        verdict: Verdict,
        violations: list[str],
        status: int,
        first_s: float,
    ) -> Summary:
        """The verdict with its figures."""
        rejects = {k: int(v) for k, v in _by_label(sample.metrics, "tidemark_rejects_total").items() if v}
        return Summary(
            ok=verdict.ok and not violations and status == 0,
            seconds=round(time.monotonic() - self.began, 1),
            flow_started_s=round(first_s, 1),
            sent=int(sent["sent"]),
            readings=int(sample.sum("tidemark_records_total")),
            admitted=int(sample.sum("tidemark_readings_admitted_total")),
            rejects=rejects,
            windows=int(verdict.compared.get("windows", 0)),
            windows_final=0,
            sessions=int(verdict.compared.get("sessions", 0)),
            sessions_closed=0,
            devices=int(verdict.compared.get("devices", 0)),
            batches=int(sample.metrics.get("tidemark_batch", -1)) + 1,
            mismatches=verdict.mismatches,
            contract_violations=len(violations),
            latency_ms={
                name: round(percentile(sample.metrics, share), 1)
                for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
            },
            service_exit=status,
            seed=self.args.seed,
            rate=self.args.rate,
            examples=[*verdict.examples, *violations[:5]],
        )


def fleet_settings(args: argparse.Namespace) -> FleetSettings:
    """A fleet whose drop-outs are short enough to end sessions within a minute's demo."""
    return FleetSettings(
        devices=args.devices,
        rate=args.rate,
        max_delay_ms=2_000,
        dropout_share=0.2,
        dropout_ms=16_000,
        dropout_every_ms=40_000,
    )


def _fleet_options(args: argparse.Namespace) -> list[str]:
    settings = fleet_settings(args)
    return [
        *("--max-delay", f"{settings.max_delay_ms}ms"),
        *("--dropouts", str(settings.dropout_share)),
        *("--dropout", f"{settings.dropout_ms}ms"),
        *("--dropout-every", f"{settings.dropout_every_ms}ms"),
    ]


def _by_label(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    values = {key.split('"')[1]: value for key, value in metrics.items() if key.startswith(name + "{")}
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def main(argv: Sequence[str] | None = None) -> int:
    """0 when nothing differs, 1 when something does, an error's own status otherwise."""
    parser = argparse.ArgumentParser(prog="make demo", description="The main job on embedded servers, checked.")
    parser.add_argument("--for", dest="seconds", type=seconds_of, default=60.0, metavar="60s")
    parser.add_argument("--rate", type=float, default=5_000.0, help="readings a second")
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--master", default="local[*]", help="Spark's master")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the summary")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        check_machine(folder=ROOT)
        summary = Demo(args).run()
    except TidemarkError as error:
        return print_error(error)
    except KeyboardInterrupt:
        print("stopped; nothing was checked", file=sys.stderr)
        return 130
    text = json.dumps(asdict(summary), indent=2)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    print(
        f"{'OK' if summary.ok else 'DIFFERENT'}: {summary.readings:,} readings, {summary.windows:,} windows, "
        f"{summary.sessions:,} sessions, {summary.devices:,} devices, {sum(summary.rejects.values()):,} rejects compared; "
        f"{summary.mismatches} mismatches, {summary.contract_violations} violations of the Redis contract"
    )
    return 0 if summary.ok else 1


if __name__ == "__main__":
    sys.exit(main())

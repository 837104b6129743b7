"""One run of the demo: its parts in order, from the servers to the comparison."""

import argparse
import contextlib
import importlib.util
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from load.demo import INPUTS, METERS, SECTIONS, VIEWS
from load.demo.summary import Summary
from load.demo.view import Sample, Samples, rounded
from load.fleet.fleet import Fleet, FleetSettings
from load.judge import published
from load.judge.compare import compare
from load.servers.child_process import Child
from load.servers.dashboard import Dashboard
from load.servers.server_process import Started
from load.testbed import TOPIC, Testbed
from schemas import contract
from service.spark.places import cache
from tidemark_client import Client, ContractError, queries

FOLDER = cache() / "demo"
PAGE = "tidemark_dashboard"
TICK_S = 0.5
LINE_EVERY_S = 5.0
"""Between two lines where the output is no terminal."""
METERS_SHARE = 0.25
"""The share of the rate that goes to the topic of the second input."""
WARM_SHARE = 0.5
"""The warm-up takes no more than this share of the load's time."""


class Demo(Started):
    """A context: its end ends all parts."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.console = Console(highlight=False)
        # Its drop-outs are short enough to end sessions within a minute's demo.
        settings = FleetSettings(
            devices=args.devices, rate=args.rate, dropout_share=0.2, dropout_ms=16_000, dropout_every_ms=40_000
        )
        sections = {**{name: each for name, each in SECTIONS.items() if name != "input"}, "inputs": INPUTS}
        self.testbed = Testbed(FOLDER, Fleet(args.seed, settings), views=VIEWS, sections=sections, master=args.master)
        self.samples = Samples(args.rate, args.seconds * WARM_SHARE)
        self.began = time.monotonic()
        self._parts = contextlib.ExitStack()

    def start(self) -> None:
        self._parts.enter_context(self.testbed)

    def close(self) -> None:
        self._parts.close()

    def run(self) -> Summary:
        """Run the service under load, stop both and compare all values."""
        testbed = self.testbed
        self.say(f"broker {testbed.broker.bootstrap}, redis {testbed.redis.url}, all files in {testbed.folder}")
        self.start_service()
        self.start_page()
        self.wait_for_query()
        first_s = time.monotonic() - self.began
        self.say(f"the query runs after {first_s:.1f} s; {self.args.rate:.0f} readings a second from now on")
        began = time.monotonic()
        generators = self.start_generators("--for", f"{self.args.seconds}s")
        self.watch(generators)
        sent = self.generator_summaries(generators)
        self.say("the load has stopped; waiting until all of it is published")
        for topic, each in sent.items():
            testbed.wait_published({int(p): end for p, (_, end) in each["offsets"].items()}, topic=topic)
        self.look()
        status = testbed.stop_service()
        self.say(f"the service has stopped with status {status}; comparing all of Redis with the oracle")
        return self.summarise(sum(int(each["sent"]) for each in sent.values()), status, first_s, began)

    def report(self, summary: Summary) -> None:
        style = "green" if summary.ok else "bold red"
        for line in summary.lines():
            self.console.print(Text(line, style=style if line == summary.verdict() else ""), soft_wrap=True)

    def keep(self) -> None:
        """Start the service and the load again, and run until KeyboardInterrupt; then stop both in order."""
        self.say("KEEP: the service and the load start again")
        self.samples = Samples(
            self.args.rate, self.args.seconds * WARM_SHARE
        )  # the counters of a new process begin at 0
        self.start_service()
        self.wait_for_query()
        generators = self.start_generators()
        self.say("all parts run until Ctrl-C")
        try:
            self.watch(generators)
        finally:
            self.say("stopping")
            self.generator_summaries(generators)
            self.testbed.stop_service()

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/]  {text}", soft_wrap=True)

    def start_service(self) -> None:
        self.testbed.start_service()
        self.say(f"service submitted, its state: {self.service_url}/")

    def wait_for_query(self) -> None:
        """Wait until the query runs. Raises SetupError, also when the service has ended."""
        self.say("waiting for the query: the JVM, Spark and the reference start")
        self.testbed.wait(lambda: self.testbed.metrics().get("tidemark_query_running"), 120, "the query to start")

    @property
    def service_url(self) -> str:
        return f"http://127.0.0.1:{self.testbed.metrics_port}"

    def start_page(self) -> None:
        """Start the dashboard page, if its package is installed, and print its address."""
        if importlib.util.find_spec(PAGE) is None:
            self.say("no dashboard page: the package tidemark-dashboard is not installed")
            return
        options = ["--unit", "temperature=°C", "--unit", "power=W"]
        page = Dashboard(self.testbed.folder, self.testbed.redis.url, self.service_url, options)
        self._parts.enter_context(page)
        self.say(f"dashboard page: [bold]{page.url}/[/]")

    def start_generators(self, *options: str) -> dict[str, Child]:
        """Start the load, in a process for each topic. Both send readings of the same devices."""
        meters = self.args.rate * METERS_SHARE
        loads = {TOPIC: (self.args.rate - meters, "avro"), METERS: (meters, "json")}
        start = self.testbed.start_generator
        return {
            topic: start(rate, "--format", value_format, *options, topic=topic, log=f"generator-{topic}")
            for topic, (rate, value_format) in loads.items()
        }

    def generator_summaries(self, generators: Mapping[str, Child]) -> dict[str, dict[str, Any]]:
        """End the generators, which flush first; return their summaries by topic."""
        for generator in generators.values():
            generator.terminate()
        return {topic: self.testbed.end_generator(each, f"generator-{topic}") for topic, each in generators.items()}

    def watch(self, generators: Mapping[str, Child]) -> None:
        """Show what happens until the first generator ends."""
        generator = generators[TOPIC]
        if self.console.is_terminal:
            with Live(console=self.console, refresh_per_second=4) as live:
                while generator.poll() is None:
                    self.look()
                    live.update(self.samples.panel())
                    time.sleep(TICK_S)
            return
        shown = 0.0
        while generator.poll() is None:
            self.look()
            if time.monotonic() - shown >= LINE_EVERY_S:
                shown = time.monotonic()
                self.say(self.samples.line())
            time.sleep(TICK_S)

    def look(self) -> None:
        """Take a sample. Raises SetupError when the service has ended."""
        self.testbed.check_service()
        metrics = self.testbed.metrics()
        sites: list[tuple[str, str, str]] = []
        with (
            contextlib.suppress(ContractError),
            Client.from_url(self.testbed.redis.url) as client,
        ):  # before the first batch
            keys = [key for key, _ in client.keys("site", limit=10)]
            newest = client.ask_all(queries.latest_complete("site", key, "temperature") for key in keys)
            sites = [(each.key, f"{each.mean:.2f}", str(each.count)) for each in newest if each is not None]
        self.samples.add(Sample(time.monotonic(), metrics, sorted(sites, key=lambda s: -float(s[1]))))

    def summarise(self, sent: int, status: int, first_s: float, began: float) -> Summary:
        """Compare all values with the oracle and return the verdict with its figures."""
        testbed, sample = self.testbed, self.samples.last
        warm_up_s = self.samples.end_warm_up() - began
        verdict = compare(testbed.config)
        shards = testbed.settings["redis"].get("shards", 1)
        with testbed.redis_client() as client:
            violations = [str(each) for each in contract.check(client, "tidemark", shards)]
            hashes = published.hashes(client, "tidemark", ("window", "session"), shards=shards)
            closed = Counter(key.split(":")[1] for key, fields in hashes if fields["closed_by"])
        latencies = {
            name: self.samples.latency_ms(share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        }
        return Summary(
            ok=verdict.ok and not violations and status == 0,
            seconds=round(time.monotonic() - self.began, 1),
            flow_started_s=round(first_s, 1),
            warm_up_s=round(warm_up_s, 1),
            caught_up=self.samples.caught_up,
            sent=sent,
            readings=int(sample.sum("tidemark_records_total")),
            admitted=int(sample.sum("tidemark_readings_admitted_total")),
            filtered=int(sample.sum("tidemark_records_filtered_total")),
            rejects={k: int(v) for k, v in sample.by_label("tidemark_rejects_total").items() if v},
            windows=int(verdict.compared.get("windows", 0)),
            windows_final=closed["window"],
            sessions=int(verdict.compared.get("sessions", 0)),
            sessions_closed=closed["session"],
            devices=int(verdict.compared.get("devices", 0)),
            batches=int(sample.metrics.get("tidemark_batch", -1)) + 1,
            mismatches=verdict.mismatches,
            contract_violations=len(violations),
            latency_ms=rounded(latencies),
            service_exit=status,
            seed=self.args.seed,
            rate=self.args.rate,
            examples=[*verdict.examples, *violations[:5]],
        )

"""The result of a demo: its figures, and what each of them means."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

OWN_TOPIC = (
    ("tidemark init --bootstrap HOST:9092 --topic TOPIC", "reads a sample of the topic and writes tidemark.toml"),
    ("tidemark check", "tries every address, topic and view; changes nothing"),
    ("tidemark run", "starts the service"),
)
"""The commands from a topic to values in Redis."""


@dataclass
class Summary:
    """The report of `--json`. `latency_ms` are quantiles of the time from the broker's timestamp of a reading to Redis'
    acknowledgement of its values, after the first `warm_up_s` seconds of the load. `caught_up`: the
    warm-up ended with the service reading the load as it came, not by its time limit.
    """

    ok: bool
    seconds: float
    flow_started_s: float
    warm_up_s: float
    caught_up: bool
    sent: int
    readings: int
    admitted: int
    filtered: int
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

    def figures(self) -> list[tuple[str, str, str]]:
        """Each figure as its name, its value and its meaning."""
        latencies = " / ".join(f"{value:,.0f}" for value in self.latency_ms.values())
        names = " / ".join(self.latency_ms)
        rejected = sum(self.rejects.values())
        latency = (
            "latency",
            f"{latencies} ms",
            f"{names}: from the broker's time of a reading until Redis has its values",
        )
        if not self.latency_ms:
            latency = ("latency", "none", "no batch after the warm-up: run longer, such as --for 60s")
        warm_up = "until the first batches had caught up with the load; not in the latency"
        if not self.caught_up:
            warm_up = (
                "the service had not caught up with the load by then, so the latency includes its delay: run longer"
            )
        return [
            ("start-up", f"{self.flow_started_s:.1f} s", "until the query ran: servers, JVM, Spark, reference"),
            ("warm-up", f"{self.warm_up_s:.1f} s", warm_up),
            latency,
            (
                "readings",
                f"{self.readings:,}",
                f"records read in {self.batches:,} micro-batches; {self.admitted:,} admitted",
            ),
            ("filtered", f"{self.filtered:,}", "records that the filter of the second input leaves out"),
            (
                "rejects",
                f"{rejected:,}",
                f"records not admitted, kept in a topic with the reason: {_list(self.rejects)}",
            ),
            (
                "windows",
                f"{self.windows:,}",
                f"statistics by device, type, site and all; {self.windows_final:,} are final",
            ),
            (
                "sessions",
                f"{self.sessions:,}",
                f"a device's readings without a gap; {self.sessions_closed:,} are closed",
            ),
            ("devices", f"{self.devices:,}", "hashes with the last values of a device"),
            ("mismatches", f"{self.mismatches:,}", "values and rejects that differ from an independent recomputation"),
            (
                "violations",
                f"{self.contract_violations:,}",
                "keys and fields in Redis that schemas/redis.json does not allow",
            ),
        ]

    def verdict(self) -> str:
        return (
            f"{'OK' if self.ok else 'DIFFERENT'}: {self.readings:,} readings, {self.windows:,} windows, "
            f"{self.sessions:,} sessions, {self.devices:,} devices, {sum(self.rejects.values()):,} rejects compared; "
            f"{self.mismatches} mismatches, "
            f"{self.contract_violations} violations of the Redis contract"
        )

    def lines(self) -> Iterator[str]:
        """Yield the figures, the differences, the verdict and the commands for a topic of one's own."""
        yield ""
        for name, value, meaning in self.figures():
            yield f"{name:<10}  {value:>22}  {meaning}"
        yield from self.examples
        yield self.verdict()
        yield "\nYour own topic takes three commands:"
        for command, meaning in OWN_TOPIC:
            yield f"    {command:<52}# {meaning}"


def _list(rejects: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in rejects.items()) or "none"

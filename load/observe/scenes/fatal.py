"""The scene `fatal`: readings that are not as expected, tasks that hang, records that end every process that reads them."""

import json
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from load.faults.raw import send_zeros
from load.instance import send, tree
from load.observe.scene import STARTS_S, Cause, Scene
from load.testbed import TOPIC, output_of
from service.errors import SetupError, UnreadableRecordError

HOTTEST = 40.0
SHIFT = 60.0
ZEROS = 700 << 20
"""Bytes of a record that the driver's heap of 2 GB cannot hold several times; some KB with zstd."""
_SUITE = {
    "name": "readings",
    "meta": {},
    "expectations": [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "temperature", "min_value": 0.0, "max_value": HOTTEST},
        }
    ],
}
_STARTS = 8


class Fatal(Scene):
    """Settings: a sample is checked every five seconds, and a lease is short, so that a start after a crash waits little."""

    job = "tidemark-fatal"

    def sections(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "service": {"trigger": "1 s", "lease": "3 s"},
            "quality": {"expectations": "readings.expectations.json", "every": "5 s", "sample": 200},
        }

    def groups(self) -> Sequence[Sequence[Cause]]:
        return (
            (
                Cause(
                    ("TidemarkQuality",),
                    f"every reading is {SHIFT:.0f} degrees too warm",
                    partial(self.sending, shift=SHIFT),
                ),
            ),
            (
                Cause(
                    ("TidemarkQualityUnchecked",),
                    "the file of expectations is damaged",
                    self.no_expectations,
                    clears_late=True,
                ),
            ),
            (Cause(("TidemarkStuck",), "the Python workers hang", self.workers_hang),),
            (
                Cause(
                    ("TidemarkUnreadable", "TidemarkDriverRestarts"),
                    "a record that no process can read",
                    self.unreadable_record,
                ),
            ),
        )

    @property
    def suite(self) -> Path:
        return self.testbed.folder / "readings.expectations.json"

    def start(self) -> None:
        self.suite.write_text(json.dumps(_SUITE))
        super().start()

    @contextmanager
    def no_expectations(self) -> Iterator[None]:
        self.suite.write_text("{")
        yield
        self.suite.write_text(json.dumps(_SUITE))

    @contextmanager
    def workers_hang(self) -> Iterator[None]:
        workers = [each for each in tree([self.testbed.service_pid]) if "service.spark.pyworker" in each.cmdline()]
        send(signal.SIGSTOP, workers)
        yield
        send(signal.SIGCONT, workers)

    @contextmanager
    def unreadable_record(self) -> Iterator[None]:
        """The service is started as a supervisor does, until it names the offsets; they are skipped, and it starts once more."""
        send_zeros(self.testbed.broker.bootstrap, TOPIC, ZEROS)
        ends = [self._end()]
        while ends[-1] != UnreadableRecordError.status:
            if len(ends) > _STARTS:
                what = f"The service has ended with {ends} and has named no record; {self.testbed.last_words()}"
                raise SetupError(what)
            ends.append(self._end())
        named = re.findall(rf"{TOPIC}\[\d+\]@\d+(?:-\d+)?", self.testbed.last_words())
        self.say(f"the service ended with {ends}, and named {named}")
        self.testbed.start_service()  # its metrics name the number of offsets until it ends again
        yield
        self.until(lambda: self.testbed.exit_status is not None, STARTS_S, "the service to end")
        output_of(self.testbed.command("skip", *set(named)))
        self.restart()

    def _end(self) -> int:
        """Start the service if it does not run, and return the status with which it ends."""
        if self.testbed.exit_status is not None:
            self.testbed.kill_service()
            self.testbed.start_service()
        self.until(lambda: self.testbed.exit_status is not None, STARTS_S, "the service to end")
        status = self.testbed.exit_status
        return status if status is not None else 0

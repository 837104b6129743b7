"""The quality checker: every `quality.every` it checks a sample of the newest records against the expectations.

    offsets of a committed batch -> sample        a batch job of one task, with the builders of the stream
                                 -> validation    a process: Great Expectations
                                 -> metrics, the page

The checker delays no batch: it waits in another thread, and Great Expectations runs in another process. A failure is
counted and logged. Each check reads the file of expectations again, so that an edit needs no restart.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from service import clock
from service.errors import SchemaError, SetupError
from service.micro_batch import Offsets
from service.monitoring.home_page import Quality
from service.monitoring.metrics import Metrics
from service.pipeline.side_job import SideJob
from service.pipeline.term import Term
from service.quality import sample
from service.quality.validation import OUTCOME, PAGE, SAMPLE

LIMIT_S = 120.0
"""How long a validation may take."""
_log = logging.getLogger(__name__)


class Checker(SideJob):
    """Checks samples for the life of the process, across its queries.

    Of `term`, the first query's, it uses what stays for the process: Spark, the settings, the schema catalog and the reference.
    """

    def __init__(self, term: Term, expectations: Path, metrics: Metrics, page: Quality) -> None:
        every_s = term.settings.quality.every_ms / 1000
        # Also after a failure the next check waits for its time: each costs seconds of a processor.
        super().__init__(term.spark, "tidemark-quality", every_s, again_s=every_s)
        self._term, self._settings, self._expectations = term, term.settings, expectations
        self._metrics, self._page = metrics, page
        self._end: Offsets | None = None
        self._process: subprocess.Popen[str] | None = None
        self._unmet: frozenset[str] = frozenset()

    def committed(self, end: Offsets) -> None:
        """Note the end of a committed batch; the first one starts the thread. Returns at once."""
        is_first, self._end = self._end is None, end
        if is_first:
            self.start()

    def interrupt(self) -> None:
        """Abandon a check that runs."""
        if (process := self._process) is not None:
            process.kill()

    def failed(self, error: Exception) -> None:
        self._metrics.quality.failures.inc()
        self._page.failed(str(error))
        _log.warning("No sample was checked: %s", error)

    def work(self) -> None:
        """Check a sample of the newest records."""
        settings = self._settings
        source = sample.newest(settings.kafka, settings.quality.sample, until=self._end)
        if not source.size:
            return
        snapshot = self._term.current_snapshot
        attributes = snapshot.attributes if snapshot is not None else None
        table = sample.read(self._term.spark, settings, source, attributes, self._term.schemas)
        with tempfile.TemporaryDirectory(prefix="tidemark-quality-") as folder:
            self._validate(table, Path(folder))
            outcome = json.loads((Path(folder) / OUTCOME).read_text(encoding="utf-8"))
            page = (Path(folder) / PAGE).read_bytes()
        met = {each["label"]: bool(each["met"]) for each in outcome}
        readings = int(pc.sum(table[sample.ADMITTED]).as_py() or 0)
        self._metrics.quality.checks(met, readings, clock.now_ms() / 1000)
        self._page.show(page)
        self._report({each["label"]: each["text"] for each in outcome if not each["met"]}, len(outcome))

    def _validate(self, table: pa.Table, folder: Path) -> None:
        """Raises SchemaError when the file cannot be used, SetupError when the process does not end as it should."""
        with pa.OSFile(str(folder / SAMPLE), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
        command = [sys.executable, "-P", "-m", "service.quality.validation", str(self._expectations), str(folder)]
        # Great Expectations leaves temporary folders behind.
        environment = {**os.environ, "TMPDIR": str(folder)}
        with subprocess.Popen(  # noqa: S603 - ourselves
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            self._process = process
            try:
                errors = process.communicate(timeout=LIMIT_S)[1]
            except subprocess.TimeoutExpired:
                process.kill()
                what = f"the validation took longer than {LIMIT_S:.0f} s"
                raise SetupError(what, remedy="Make quality.sample smaller, or give the machine more cores") from None
            finally:
                self._process = None
        last = next(iter(reversed(errors.splitlines())), "")
        if process.returncode == SchemaError.status:
            raise SchemaError(last)
        if process.returncode:
            raise SetupError(f"the validation ended with status {process.returncode}: {last}")

    def _report(self, unmet: dict[str, str], among: int) -> None:
        """Log what has changed since the last check, and note what is not met on /readyz."""
        for label in sorted(unmet.keys() - self._unmet):
            _log.warning("An expectation is not met: %s", unmet[label])
        for label in sorted(self._unmet - unmet.keys()):
            _log.info("An expectation is met again: %s", label)
        self._unmet = frozenset(unmet)
        note = f"{len(unmet)} of {among} expectations are not met: {', '.join(sorted(unmet))}; see /quality"
        self._metrics.note("quality", note if unmet else "")

"""The first executor: the rules as plain functions, without Spark, Kafka or Redis.

Admission is the oracle's, record by record (load/oracle.py), windows and sessions are load/expected.py's. What the engine
adds is one rule: the watermark is the largest admitted event time less `max_delay + max_ahead`, and never falls.
"""

from collections.abc import Mapping

from load import oracle
from load.rules import Reference, Rules
from load.transcripts.transcript import Output, Record, Transcript


class Pure:
    """All transcripts of a run in one ledger, one step after the other."""

    name = "pure"

    def __init__(self, rules: Rules, reference: Reference) -> None:
        self._ledger = oracle.Ledger(rules, reference)
        self._delay_ms = rules.max_delay_ms + rules.max_ahead_ms
        self._offset = 0
        self._rejects: dict[str, Mapping[str, str]] = {}
        self.watermark_ms = 0

    def begin(self, _transcript: Transcript) -> None:
        """Rejects are numbered from here."""
        self._offset, self._rejects = 0, {}

    def step(self, _transcript: Transcript, records: tuple[Record, ...]) -> Output:
        """Everything there is after these records, of all transcripts."""
        for record in records:
            self._offset += 1
            number = self._offset
            reason = self._ledger.take(oracle.Record("readings", 0, number, record.at_ms, None, record.value))
            if reason is not None:
                self._rejects[f"reject {number}"] = {"reason": reason}
        newest = self._ledger.newest_ms
        if newest is not None:
            self.watermark_ms = max(self.watermark_ms, newest - self._delay_ms)
        found = self._ledger.close(self.watermark_ms)
        windows = {
            f"window {view}/{measure}/{key}/{start}": {
                **{name: getattr(value, name) for name in ("count", "mean", "min", "max", "stddev")},
                "final": value.final,
            }
            for (view, measure, key, start), value in found.windows.items()
        }
        sessions = {
            f"session {device}/{start}": {
                "state": session.state,
                "count": session.count,
                "last": session.last,
                "reason": session.reason,
            }
            for (device, start), session in found.sessions.items()
        }
        devices = {
            f"device {name}": {
                "status": device.status,
                "last_seen": device.last_seen,
                **{measure: value for measure, (value, _) in device.values.items()},
            }
            for name, device in found.devices.items()
        }
        return {**windows, **sessions, **devices, **self._rejects}

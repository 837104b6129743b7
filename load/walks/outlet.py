"""An outlet in memory, which stays when the service ends."""

from dataclasses import dataclass, field

from load.walks.plain import Place
from service.outlets import outlet
from service.outlets.outlet import Entry, Position


@dataclass(slots=True)
class Memory:
    """The number of readings of each window that it got, and why it is closed, by its newest row. A row without a larger revision
    is in `twice`."""

    counts: dict[Place, tuple[int, str]] = field(default_factory=dict)
    twice: list[Place] = field(default_factory=list)
    _revisions: dict[Place, int] = field(default_factory=dict)
    _position: Position | None = None
    _writer: int = 0

    def check(self) -> str:
        return "memory"

    def open(self, epoch: int) -> Position | None:
        outlet.require_newest((self._position or Position(0, -1)).by(self._writer), epoch, "memory")
        self._writer = epoch
        return self._position

    def write(self, entry: Entry) -> int:
        for row in entry.rows.to_pylist():
            place = row["view"], row["measure"], row["key"], round(row["start"].timestamp() * 1000)
            if row["revision"] <= self._revisions.get(place, -1):
                self.twice.append(place)
            self._revisions[place], self.counts[place] = row["revision"], (row["count"], row["closed_by"])
        self._position = entry.position
        return 1

    def close(self) -> None:
        """Nothing is open."""


class Watcher:
    """Nobody who watches the outlet."""

    def outlet_writes(self, outlet: str, rows: int, size: int) -> None:
        """An entry is in the outlet."""

    def outlet_fails(self, outlet: str) -> None:
        """An attempt failed."""

"""[reference]."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import Field

from service.settings.section import Login, Positive
from service.units import format_duration


class Reference(Login):
    url: str = Field(examples=["jdbc:postgresql://db.example.com/devices"])
    """JDBC URL without credentials. Drivers for PostgreSQL and SQLite are among the jars. A relative path in
    jdbc:sqlite is not resolved.
    """
    query: str = Field(examples=["select device_id, type, site from devices"])
    """The query that gives one row for each device."""
    key: str = "device_id"
    """The query's column that holds the device id."""
    expectations: Path | None = Field(default=None, examples=["reference.expectations.json"])
    """What the data must satisfy before it is used, beyond keys that are present and unique: a Great Expectations
    suite. `tidemark profile --reference` draws one from the data. Default: none.
    """
    refresh_ms: Positive = Field(default=300_000, alias="refresh")
    """How often the query runs. A restart within that time continues with the last rows."""
    max_age_ms: Positive = Field(default=86_400_000, alias="max_age")
    """When the database is away or its data is refused, the last good reference stays in use, also after a restart,
    until it is this old. Then a running service ends with status 4, and a starting one waits for the database. Longer
    than refresh.
    """
    timeout_ms: Positive = Field(default=10_000, alias="timeout")
    """How long the database may take to connect, and for each answer; the complete query may take three times as long.
    """
    max_shrink: float = Field(default=0.2, ge=0, le=1)
    """Share of the last reference's rows that a new one may lack; with more missing it is refused. 1 allows anything.
    """
    columns: tuple[str, ...] = Field(default=(), examples=[["type", "site"]])
    """The columns that views group by and device hashes carry, in order. Default: all of the query's but the key."""
    list_never: bool = False
    """Whether devices of the reference that have never sent a reading are listed: with the status `never` in Redis, until
    their first reading. Each is a hash in Redis that does not expire.
    """
    ranges: Mapping[str, tuple[str, str]] = Field(
        default_factory=dict, examples=[{"temperature": ["lowest", "highest"]}]
    )
    """Measure = the columns of a device's own lowest and highest value; null for none. Default: none."""
    session_gap: str | None = Field(default=None, examples=["session_gap"])
    """The column of a device's own sessions.gap: "30 s" or milliseconds, null for none. Default: none."""
    expected_interval: str | None = Field(default=None, examples=["expected_interval"])
    """The column of the time between two readings of a device: "30 s" or milliseconds, null for none. Default: none."""

    @property
    def limit_columns(self) -> tuple[str, ...]:
        """The columns that hold limits."""
        ranges = [column for pair in self.ranges.values() for column in pair]
        return tuple(dict.fromkeys(filter(None, [*ranges, self.session_gap, self.expected_interval])))

    def conflicts(self) -> Iterator[str]:
        if self.max_age_ms <= self.refresh_ms:
            yield (
                f"max_age {format_duration(self.max_age_ms)} must be longer than refresh "
                f"{format_duration(self.refresh_ms)}: every snapshot gets that old"
            )

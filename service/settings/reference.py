"""[reference]."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from service.settings.section import Login, Positive
from service.units import format_duration


class Reference(Login):
    url: str
    """A JDBC URL without credentials, such as `jdbc:postgresql://host/db` or `jdbc:sqlite:/path/devices.db`."""
    query: str
    key: str = "device_id"
    expectations: Path | None = None
    """The file of further rules for the data; `tidemark profile --reference` writes one. Keys are always present and unique."""
    refresh_ms: Positive = Field(default=300_000, alias="refresh")
    max_age_ms: Positive = Field(default=86_400_000, alias="max_age")
    timeout_ms: Positive = Field(default=10_000, alias="timeout")
    max_shrink: float = Field(default=0.2, ge=0, le=1)
    """Share of the last snapshot's rows that the next one may lack."""
    columns: tuple[str, ...] = ()
    """The query's columns, without the key, that views group by and device hashes have; all of them when empty."""
    ranges: Mapping[str, tuple[str, str]] = Field(default_factory=dict)
    """Measure -> the columns of a device's own lowest and highest value: service/reference/limits.py."""
    session_gap: str | None = None
    expected_interval: str | None = None

    @property
    def limit_columns(self) -> tuple[str, ...]:
        """The columns that hold limits."""
        ranges = [column for pair in self.ranges.values() for column in pair]
        return tuple(dict.fromkeys(filter(None, [*ranges, self.session_gap, self.expected_interval])))

    @model_validator(mode="after")
    def _outlives_a_refresh(self) -> Self:
        if self.max_age_ms <= self.refresh_ms:
            msg = (
                f"max_age {format_duration(self.max_age_ms)} must be longer than refresh "
                f"{format_duration(self.refresh_ms)}: every snapshot gets that old"
            )
            raise ValueError(msg)
        return self

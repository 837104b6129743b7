"""[[outlets]]: where final values go for good."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ByteSize, Field, field_validator, model_validator

from service.settings.kafka import TOPIC
from service.settings.section import Client, Login, Name, NotNegative, Positive

_SMALLEST_PENDING = 1 << 16


class _Outlet(Login):
    """What outlets of all kinds share. `kind` is in each class: its text decides which class a section is."""

    name: Name
    views: tuple[Name, ...] | None = None
    """The views whose final windows go there; None for all."""
    sessions: bool = False
    """Closed sessions go there, and no windows: the two have different columns."""
    retry_for_ms: NotNegative = Field(default=15_000, alias="retry_for")
    """How long a batch waits for the outlet."""
    when_away: Literal["wait", "fall_behind"] = "fall_behind"
    """After that: the batch fails and is tried again, or goes on, and the outlet gets its finals later."""
    max_pending: ByteSize = Field(default=ByteSize(1 << 30), ge=_SMALLEST_PENDING)
    """Bytes of finals that are kept for the outlet while it is behind. A larger backlog makes batches wait."""

    @model_validator(mode="after")
    def _has_one_shape(self) -> Self:
        if self.sessions and self.views is not None:
            msg = "views: an outlet takes windows or sessions, not both; name a second outlet"
            raise ValueError(msg)
        return self


class ParquetOutlet(_Outlet):
    kind: Literal["parquet"]
    path: str
    """A folder, or a URL of a file system that pyarrow opens; only this outlet writes there."""
    compact_after: int = Field(default=50, ge=2, le=10_000)
    """The number of files of a view and a day that are made one."""


class JdbcOutlet(_Outlet):
    kind: Literal["jdbc"]
    url: str
    """A JDBC URL of PostgreSQL without credentials, such as `jdbc:postgresql://host/db`."""
    table: str
    """The table, such as `windows` or `fleet.windows`; it is created if it does not exist."""
    timeout_ms: Positive = Field(default=10_000, alias="timeout")

    @field_validator("url")
    @classmethod
    def _is_postgresql(cls, value: str) -> str:
        if not value.startswith("jdbc:postgresql:") or "@" in value or "password=" in value:
            msg = "must be jdbc:postgresql://host:port/database, with user and password in keys of their own"
            raise ValueError(msg)
        return value

    @field_validator("table")
    @classmethod
    def _is_a_table(cls, value: str) -> str:
        parts = value.split(".")
        if len(parts) > 2 or not all(part.isidentifier() and part == part.lower() and part.isascii() for part in parts):
            msg = "must be a table, or schema.table, of lower-case letters, digits and _"
            raise ValueError(msg)
        return value


class KafkaOutlet(Client, _Outlet):
    kind: Literal["kafka"]
    topic: str
    format: Literal["avro", "json"] = "avro"
    """The form of the values; avro needs [registry]."""
    bootstrap: str | None = None
    """The brokers; None for those of [kafka], with its login and options."""
    subject: str | None = None
    """The registry's subject of the values; None for `<topic>-value`."""
    partitions: int = Field(default=4, gt=0, le=1_000)
    """The number of partitions if the outlet has to create the topic."""
    compacted: bool = False
    """A topic that the outlet creates keeps the newest value of each key, instead of all for the broker's retention."""

    @field_validator("topic")
    @classmethod
    def _is_a_topic(cls, value: str) -> str:
        if not TOPIC.match(value):
            msg = "must be letters, digits, . _ or -"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _has_its_own_login(self) -> Self:
        own: Mapping[str, Any] = {"user": self.user, "ca_file": self.ca_file, "certificate": self.certificate}
        if self.bootstrap is None and (self.options or any(each is not None for each in own.values())):
            msg = "bootstrap: is missing, and there is a login or options; without bootstrap those of [kafka] are used"
            raise ValueError(msg)
        return self


Outlet = Annotated[ParquetOutlet | JdbcOutlet | KafkaOutlet, Field(discriminator="kind")]

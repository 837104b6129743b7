"""[[outlets]]: where final values go for good."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ByteSize, Field, field_validator, model_validator

from service.settings.kafka import TOPIC
from service.settings.section import Client, Login, Name, NotNegative, Positive

_SMALLEST_PENDING = 1 << 16


class _Outlet(Login):
    """What outlets of all kinds share. `kind` is in each class: its text decides which class a section is."""

    name: Name = Field(examples=["history"])
    """The outlet's name: lower-case letters, digits and _."""
    views: tuple[Name, ...] | None = Field(default=None, examples=[["device"]])
    """Views whose windows go there. Default: all."""
    sessions: bool = False
    """Closed sessions go there, and no windows."""
    retry_for_ms: NotNegative = Field(default=15_000, alias="retry_for")
    """How long a batch waits for the outlet."""
    when_away: Literal["wait", "fall_behind"] = "fall_behind"
    """What comes after that: "fall_behind" (batches go on, and the outlet gets its finals later) or "wait" (the batch
    fails, and is tried again).
    """
    max_pending: ByteSize = Field(default=ByteSize(1 << 30), ge=_SMALLEST_PENDING)
    """Bytes of finals that are kept in the checkpoint for an outlet that is behind. Then batches wait for it."""

    @model_validator(mode="after")
    def _has_one_shape(self) -> Self:
        if self.sessions and self.views is not None:
            msg = "views: an outlet takes windows or sessions, not both; name a second outlet"
            raise ValueError(msg)
        return self


class ParquetOutlet(_Outlet):
    kind: Literal["parquet"]
    """Files of Parquet."""
    path: str = Field(examples=["/var/lib/tidemark/history"])
    """A folder, or a URL of a file system that pyarrow opens. Only this outlet writes there."""
    compact_after: int = Field(default=50, ge=2, le=10_000)
    """Files of a view and a day that are made one."""


class JdbcOutlet(_Outlet):
    kind: Literal["jdbc"]
    """A table of PostgreSQL."""
    url: str = Field(examples=["jdbc:postgresql://db.example.com/history"])
    """JDBC URL of PostgreSQL without credentials."""
    table: str = Field(examples=["windows"])
    """The table, such as windows or fleet.windows. It is created if it does not exist."""
    timeout_ms: Positive = Field(default=10_000, alias="timeout")
    """Limit of one answer."""

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
    """A topic of Kafka."""
    topic: str = Field(examples=["finals"])
    """The topic. It is created if it does not exist."""
    format: Literal["avro", "json"] = "avro"
    """The form of the values; "avro" needs [registry]."""
    bootstrap: str | None = Field(default=None, examples=["kafka.example.com:9093"])
    """Other brokers than those of [kafka]; login, TLS files and options are then the outlet's. Default: those of
    [kafka], with its login.
    """
    subject: str | None = Field(default=None, examples=["finals-value"])
    """The registry's subject of the values. Default: <topic>-value."""
    partitions: int = Field(default=4, gt=0, le=1_000)
    """Partitions of a topic that the outlet creates."""
    compacted: bool = False
    """Of a topic that the outlet creates: true keeps the newest value of each key, false keeps all for the broker's
    retention.
    """

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

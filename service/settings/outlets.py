"""[[outlets]]: where final values go for good. The section of each kind has what only this kind needs of the settings.

A new kind is a section here, its class in service/outlets/, a test and a page: docs/how-to-add.md.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import ByteSize, Field

from service.settings.kafka import TOPIC, Kafka
from service.settings.place import folder, nested
from service.settings.section import Client, Login, Name, NotNegative, Positive, rule

_SMALLEST_PENDING = 1 << 16
_POSTGRESQL = rule(
    re.compile(r"jdbc:postgresql:(?!.*password=)[^@]*", re.DOTALL).fullmatch,
    "must be jdbc:postgresql://host:port/database, with user and password in keys of their own",
)
_TABLE = rule(
    re.compile(r"([a-z_][a-z0-9_]*\.)?[a-z_][a-z0-9_]*").fullmatch,
    "must be a table, or schema.table, of lower-case letters, digits and _",
)


class OutletSection(Login):
    """What outlets of all kinds share. `kind` is in each class: its text decides which class a section is."""

    made_by: ClassVar[str]
    """The class that writes to the outlet, as module:name. It takes the section, the settings and the Spark session."""
    is_shared: ClassVar[bool] = True
    """Whether several outlets of one service may write to one place, because each has its own position there."""

    name: Name = Field(examples=["history"])
    """The outlet's name: lower-case letters, digits and _."""
    views: tuple[Name, ...] | None = Field(default=None, examples=[["device"]])
    """Views whose windows go there. Default: all."""
    sessions: bool = False
    """Closed sessions go there, and no windows."""
    states: bool = False
    """Changes of the statuses of devices go there (online, quiet, offline, never, skewed), and no windows."""
    retry_for_ms: NotNegative = Field(default=15_000, alias="retry_for")
    """How long a batch waits for the outlet."""
    when_away: Literal["wait", "fall_behind"] = "fall_behind"
    """What comes after that: "fall_behind" (batches go on, and the outlet gets its finals later) or "wait" (the batch
    fails, and is tried again).
    """
    max_pending: ByteSize = Field(default=ByteSize(1 << 30), ge=_SMALLEST_PENDING)
    """Bytes of finals that are kept in the checkpoint for an outlet that is behind. Then batches wait for it."""

    @property
    def content(self) -> Literal["windows", "sessions", "states"]:
        """The rows that go there: see service/outlets/tables.py."""
        return "sessions" if self.sessions else "states" if self.states else "windows"

    def conflicts(self) -> Iterator[str]:
        if self.views is not None and self.content != "windows":
            yield f"views: an outlet takes windows or {self.content}, not both; name a second outlet"
        if self.sessions and self.states:
            yield "states: an outlet takes sessions or states, not both; name a second outlet"

    def place(self, kafka: Kafka) -> tuple[str, ...]:
        """Return what the outlet writes, by kind and name: outlets of two pipelines, each with its [kafka], may not be equal."""
        raise NotImplementedError

    def overlap(self, names: str, other: "OutletSection", kafka: Kafka, others: Kafka) -> Iterator[str]:
        """Yield a problem if another outlet, with its own [kafka], writes to the same place. `names` are those of both."""
        if self.place(kafka) == other.place(others):
            yield f"{names}: both write {self.place(kafka)[-1]}"

    def problems(self, kafka: Kafka, *, has_registry: bool) -> Iterator[str]:
        """Yield a problem for each key that another section does not allow."""
        yield from ()

    def topics(self) -> tuple[str, ...]:
        """Return the topics of Kafka that the outlet writes, which may be no rejects topic of another pipeline."""
        return ()

    def below(self, root: Path) -> Self:
        """Return the section with its relative paths below a folder, in addition to fields of the type Path."""
        return self


class ParquetOutlet(OutletSection):
    made_by = "service.outlets.parquet:Parquet"
    is_shared = False

    kind: Literal["parquet"]
    """Files of Parquet."""
    path: str = Field(examples=["/var/lib/tidemark/history"])
    """A folder, or a URL of a file system that pyarrow opens. Only this outlet writes there."""
    compact_after: int = Field(default=50, ge=2, le=10_000)
    """Files of a view and a day that are made one."""

    def place(self, kafka: Kafka) -> tuple[str, ...]:
        return "path", folder(self.path)

    def overlap(self, names: str, other: OutletSection, kafka: Kafka, others: Kafka) -> Iterator[str]:
        """Yield a problem also for a folder inside the other one."""
        if isinstance(other, ParquetOutlet):
            yield from nested(names, folder(self.path), folder(other.path), "/")

    def below(self, root: Path) -> Self:
        return self if ":" in self.path else self.model_copy(update={"path": str((root / self.path).resolve())})


class JdbcOutlet(OutletSection):
    made_by = "service.outlets.jdbc:Jdbc"

    kind: Literal["jdbc"]
    """A table of PostgreSQL."""
    url: Annotated[str, _POSTGRESQL] = Field(examples=["jdbc:postgresql://db.example.com/history"])
    """JDBC URL of PostgreSQL without credentials."""
    table: Annotated[str, _TABLE] = Field(examples=["windows"])
    """The table, such as windows or fleet.windows. It is created if it does not exist."""
    timeout_ms: Positive = Field(default=10_000, alias="timeout")
    """Limit of one answer."""

    def place(self, kafka: Kafka) -> tuple[str, ...]:
        return "table", self.url, self.table


class KafkaOutlet(Client, OutletSection):
    made_by = "service.outlets.kafka:Kafka"

    kind: Literal["kafka"]
    """A topic of Kafka."""
    topic: Annotated[str, rule(TOPIC.match, "must be letters, digits, . _ or -")] = Field(examples=["finals"])
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

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        own = self.user, self.ca_file, self.certificate
        if self.bootstrap is None and (self.options or any(each is not None for each in own)):
            yield "bootstrap: is missing, and there is a login or options; without bootstrap those of [kafka] are used"

    def place(self, kafka: Kafka) -> tuple[str, ...]:
        return "topic", self.bootstrap or kafka.bootstrap, self.topic

    def problems(self, kafka: Kafka, *, has_registry: bool) -> Iterator[str]:
        if self.format == "avro" and not has_registry:
            yield f"outlets.{self.name}.format: avro needs a [registry]; or choose json"
        if self.topic in kafka.topics:
            yield f"outlets.{self.name}.topic: {self.topic!r} is a topic of [kafka], which is read"

    def topics(self) -> tuple[str, ...]:
        return (self.topic,)


Outlet = Annotated[ParquetOutlet | JdbcOutlet | KafkaOutlet, Field(discriminator="kind")]

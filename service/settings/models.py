"""The models of the settings, one for each section."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    field_validator,
    model_validator,
)

from service.units import Duration, format_duration
from state import statistics

NAME = re.compile(r"^[a-z][a-z0-9_]{0,62}\Z")
TOPIC = re.compile(r"^[A-Za-z0-9._-]+\Z")
_PARTITION = re.compile(r"(0|[1-9][0-9]{0,9})\Z")
"""One spelling for each number, so that no two entries are of one partition."""
RESERVED_MEASURES = frozenset(
    {"device", "bucket", "event_ms", "broker_ms", "reject", "status", "last_seen", "session", "reference"}
) | {"epoch", "batch", "updated", "from_partition", "early", "skewed"}
"""Columns of the pass and fields of a device's hash, which are no names for a measure."""
RESERVED_COLUMNS = RESERVED_MEASURES | {"known"}
"""The same, and a column of the reference's look-up: no names for a column."""
EVENTS = "events"
"""Takes the measure's place in the keys of a view without measures."""
RECORD_KEY = "$key"
"""`device_id = "$key"` takes the device id from the Kafka record's key."""

_HOST = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?"
_REDIS_URL = re.compile(
    rf"rediss?://([A-Za-z0-9._~%!$&'()*+,;=:-]*@)?{_HOST}(,{_HOST})*(/[0-9]*)?(\?[^#\s]*)?|unix://([^@/?#\s]*@)?/[^#\s]+"
)
_OTLP_URL = re.compile(rf"https?://{_HOST}(/[^@?#\s]*)?")
LARGEST = 1e140
"""The limit of every measure: the squares of larger values, added up, could be infinite, and the deviation no number."""
YEAR_MS = 366 * 86_400_000
"""The longest duration, which overflows no clock and no integer."""


def _name(value: str) -> str:
    if not NAME.match(value):
        msg = "must be a name: lower-case letters, digits and _, a letter first, at most 63"
        raise ValueError(msg)
    return value


def _starting(value: object) -> str | datetime | Mapping[str, Mapping[int, int]]:
    text = (
        "must be 'earliest', 'latest', a time with a zone such as 2026-11-20T08:00:00Z, or offsets such as "
        "{ readings = { 0 = 1200, 1 = 900 } }"
    )
    if value in ("earliest", "latest"):
        return str(value)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(text) from None
    if isinstance(value, datetime) and value.tzinfo is not None and value.timestamp() >= 0:
        return value
    if not isinstance(value, Mapping) or not value or not all(isinstance(each, Mapping) for each in value.values()):
        raise ValueError(text)
    offsets: dict[str, dict[int, int]] = {}
    for topic, partitions in value.items():
        for partition, offset in partitions.items():
            if (
                not _PARTITION.match(str(partition))
                or not isinstance(offset, int)
                or isinstance(offset, bool)
                or offset < 0
            ):
                msg = f"{topic}[{partition}] = {offset!r} is no partition with an offset of 0 or more"
                raise ValueError(msg)
            offsets.setdefault(str(topic), {})[int(partition)] = offset
    return offsets


Positive = Annotated[Duration, Field(gt=0, le=YEAR_MS)]
NotNegative = Annotated[Duration, Field(ge=0, le=YEAR_MS)]
Name = Annotated[str, AfterValidator(_name)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Login(Section):
    """A section with a user and a password, which is set here or in a file."""

    user: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None

    def secret(self) -> str | None:
        """Return the password, from the file if one is named."""
        if self.password_file is not None:
            return self.password_file.read_text(encoding="utf-8").strip()
        return self.password.get_secret_value() if self.password is not None else None


class Client(Login):
    """A login with TLS files and with options of the client library."""

    ca_file: Path | None = None
    """PEM file of the certificates to trust; the system's when not given."""
    certificate: Path | None = None
    """PEM file of the client's own certificate, for mutual TLS; `key` is its private key, PEM in PKCS #8."""
    key: Path | None = None
    options: Mapping[str, str] = Field(default_factory=dict, repr=False)


class Service(Section):
    name: Name = "tidemark"
    checkpoint: str
    """A folder or URL that only this service writes: the state, the offsets and the last good reference."""
    trigger_ms: NotNegative = Field(default=0, alias="trigger")
    """Least time between the starts of two batches; 0 starts the next batch as soon as the last one ends."""
    lease_ms: Positive = Field(default=10_000, alias="lease")
    log: Literal["text", "json"] = "text"
    """The form of the log on standard error: lines of text, or one JSON object a line."""


class Kafka(Client):
    """`ca_file` or `user` turns TLS on. `options` are of every Kafka client, in librdkafka's names: service/kafka/options.py."""

    bootstrap: str
    topics: tuple[str, ...] = Field(min_length=1)
    group: str = "tidemark"
    """The consumer group that gets the offsets of committed batches, for Kafka's own tools; it assigns no partition."""
    starting: Annotated[str | datetime | Mapping[str, Mapping[int, int]], PlainValidator(_starting)] = "earliest"
    """Where a new checkpoint begins: "earliest", "latest", a time of the broker's, or offsets by topic and partition."""
    on_data_loss: Literal["stop", "continue"] = "stop"
    """When Kafka has deleted unread records: end with a DataLossError, or continue and count them."""
    max_per_batch: int = Field(default=3_000_000, gt=0)
    rejects: str = "{topic}.rejects"

    @field_validator("topics")
    @classmethod
    def _are_different(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted({name for name in value if value.count(name) > 1}):
            msg = f"{', '.join(twice)}: is named twice"
            raise ValueError(msg)
        return value

    @field_validator("rejects")
    @classmethod
    def _names_a_topic(cls, value: str) -> str:
        if value.count("{topic}") != 1 or value == "{topic}" or not TOPIC.match(value.replace("{topic}", "")):
            msg = "must be {topic} with letters, digits, . _ or - before or after it, such as '{topic}.rejects'"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _begins_in_its_topics(self) -> Self:
        others = sorted(set(self.starting) - set(self.topics)) if isinstance(self.starting, Mapping) else []
        if others:
            msg = f"starting: {', '.join(others)} is not among the topics {', '.join(self.topics)}"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _has_both_halves(self) -> Self:
        if self.user is None and (self.password is not None or self.password_file is not None):
            msg = "user: is missing, and there is a password"
            raise ValueError(msg)
        if (self.certificate is None) != (self.key is None):
            msg = "certificate and key: give both or neither"
            raise ValueError(msg)
        return self

    def rejects_topic(self, topic: str) -> str:
        return self.rejects.format(topic=topic)


class Measure(Section):
    """A number of the record, in the unit of the views: the field times `scale`, plus `offset`, in doubles.

    Settings may give the path alone.
    """

    path: str
    """The field's path in the record, dots between nested names."""
    scale: float = Field(default=1.0, allow_inf_nan=False)
    offset: float = Field(default=0.0, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_path(cls, value: object) -> object:
        if not isinstance(value, str | Mapping):
            msg = 'must be a path, or a table such as { path = "t", scale = 0.1, offset = -40 }'
            raise ValueError(msg)
        return {"path": value} if isinstance(value, str) else value

    @field_validator("scale")
    @classmethod
    def _keeps_the_value(cls, value: float) -> float:
        if value == 0:
            msg = "must not be 0: every value would be the offset"
            raise ValueError(msg)
        return value


class Column(Section):
    """A field of the record that views group by. Settings may give the path alone."""

    path: str
    """The field's path in the record, dots between nested names."""
    max_values: int = Field(default=10_000, gt=0, le=100_000)
    """The number of different values that become keys of views; readings with another value count as `(other)`."""

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_path(cls, value: object) -> object:
        if not isinstance(value, str | Mapping):
            msg = 'must be a path, or a table such as { path = "env.line", max_values = 100 }'
            raise ValueError(msg)
        return {"path": value} if isinstance(value, str) else value


def _predicate(value: str | None) -> str | None:
    if value is not None and not value.strip():
        msg = "is blank. Give a predicate such as \"kind = 'meter' and temperature > -40\", or leave it out"
        raise ValueError(msg)
    return value


Predicate = Annotated[str | None, AfterValidator(_predicate)]
"""A SQL predicate over the device, measures, columns and attributes: service/admission/filters.py."""


class Input(Section):
    format: Literal["avro", "json"] = "avro"
    schemas: Path = Path("schemas/avro")
    """Folder of the writers' schemas, `<id>.avsc`; not used with a [registry]."""
    reader_schema: int | None = None
    """The id of the reader's schema; the highest one in the folder when not given."""
    schema_retry_ms: Positive = Field(default=60_000, alias="schema_retry")
    """Least time between two look-ups of an id that could not be resolved."""
    device_id: str = "device_id"
    event_time: str = "event_time"
    event_time_unit: Literal["logical", "s", "ms", "us", "iso"] = "ms"
    measures: Mapping[str, Measure] = Field(default_factory=dict)
    columns: Mapping[str, Column] = Field(default_factory=dict)
    where: Predicate = None
    """Records that do not meet it are counted as filtered, and have no other effect."""

    @field_validator("columns")
    @classmethod
    def _are_columns(cls, value: Mapping[str, Column]) -> Mapping[str, Column]:
        for name in value:
            _name(name)
            if name in RESERVED_COLUMNS:
                msg = (
                    f"{name!r} is a name of Tidemark's own; call the column something else, its field may keep the name"
                )
                raise ValueError(msg)
        return value

    def shared_paths(self) -> list[str]:
        """Return a problem for each column that reads a field that is read as a number or a time, too."""
        paths = {m.path: f"input.measures.{name}" for name, m in self.measures.items()} | {
            self.event_time: "input.event_time"
        }
        return [
            f"input.columns.{name}: {column.path!r} is read as {paths[column.path]}, too; a column is a text of its own"
            for name, column in self.columns.items()
            if column.path in paths
        ]

    @field_validator("measures")
    @classmethod
    def _are_names(cls, value: Mapping[str, Measure]) -> Mapping[str, Measure]:
        for name in value:
            _name(name)
            if name in RESERVED_MEASURES:
                msg = f"{name!r} is a name of Tidemark's own; call the measure something else, its field may keep the name"
                raise ValueError(msg)
        return value


class Registry(Client):
    """`options` are of Confluent's client, for OAuth: then `user` and the password are the client id and secret."""

    url: str
    """http:// or https://; several addresses of one registry with commas between, tried in order."""
    subjects: tuple[str, ...] = ()
    """The subjects whose schemas are decoded, present and future ones; `<topic>-value` of each topic when empty."""
    timeout_ms: Positive = Field(default=2_000, alias="timeout")

    @field_validator("url")
    @classmethod
    def _are_addresses(cls, value: str) -> str:
        for each in value.split(","):
            if not re.match(r"^https?://[^/@\s]+(/[^@\s]*)?\Z", each.strip()):
                msg = "must be http:// or https:// and a host, without user and password, which have keys of their own"
                raise ValueError(msg)
        if len({each.strip().partition(":")[0] for each in value.split(",")}) > 1:
            msg = "must be all https:// or all http://: the password would go to both"
            raise ValueError(msg)
        return value


class Admission(Section):
    max_delay_ms: NotNegative = Field(default=60_000, alias="max_delay")
    max_ahead_ms: NotNegative = Field(default=10_000, alias="max_ahead")
    max_hold_ms: NotNegative = Field(default=3_600_000, alias="max_hold")
    """How far, in event time, partitions with unread records may hold the watermark back."""
    idle_after_ms: Positive = Field(default=60_000, alias="idle_after")
    """After so long a silence of all input, windows and sessions are closed up to the clock's time less this duration."""
    skewed_after: int = Field(default=5, gt=0)
    """A device is marked skewed after so many early readings, with at most `skewed_for` between two of them."""
    skewed_for_ms: Positive = Field(default=600_000, alias="skewed_for")
    """The mark goes after the device's readings were admitted for that long, and none was early."""
    max_devices: int = Field(default=1_000_000, ge=0)
    """While the state has so many devices, a new device is not admitted; 0 for no limit."""
    max_bytes: ByteSize = Field(default=ByteSize(65_536), gt=0, le=(1 << 31) - 1)
    ranges: Mapping[str, tuple[float, float]] = Field(default_factory=dict)
    unknown_device: Literal["keep", "reject"] = "keep"

    @field_validator("ranges")
    @classmethod
    def _are_ranges(cls, value: Mapping[str, tuple[float, float]]) -> Mapping[str, tuple[float, float]]:
        for measure, (low, high) in value.items():
            if not -LARGEST <= low <= high <= LARGEST:
                msg = (
                    f"{measure}: [{low}, {high}] must be two numbers from {-LARGEST} to {LARGEST}, the lower one first"
                )
                raise ValueError(msg)
        return value

    @property
    def watermark_delay_ms(self) -> int:
        """The delay with which, in steady flow, an admitted reading is never behind the watermark."""
        return self.max_delay_ms + self.max_ahead_ms


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


class View(Section):
    name: Name
    by: tuple[str, ...] = ()
    """Columns to group by: `device`, columns of [input] or of the reference; none means over all devices."""
    window_ms: Positive = Field(alias="window")
    slide_ms: Positive | None = Field(default=None, alias="slide")
    measures: tuple[str, ...] | None = None
    """Measures to aggregate: None for all, () to count readings, also those without a measure."""
    where: Predicate = None
    """Readings that do not meet it are not in this view."""
    statistics: tuple[str, ...] = statistics.DEFAULT
    """Names of `state.statistics.STATISTICS`. `count` and `last` are always there."""
    retain_ms: Positive = Field(default=86_400_000, alias="retain")

    @model_validator(mode="before")
    @classmethod
    def _counts_by_default(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "statistics" not in value and value.get("measures") in ([], ()):
            return {**value, "statistics": ("count", "first", "last")}
        return value

    @model_validator(mode="after")
    def _has_values_for_its_statistics(self) -> Self:
        lacking = [name for name in self.statistics if name not in statistics.WITHOUT_VALUES]
        if self.measures == () and lacking:
            msg = (
                f"statistics: {', '.join(lacking)} of no measure; with measures = [] there are "
                f"{', '.join(statistics.WITHOUT_VALUES)}"
            )
            raise ValueError(msg)
        return self

    @field_validator("statistics")
    @classmethod
    def _are_statistics(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in value if name not in statistics.STATISTICS]:
            msg = f"{', '.join(map(repr, unknown))}: no such statistic; there are {', '.join(statistics.STATISTICS)}"
            raise ValueError(msg)
        return statistics.with_always(value)

    @model_validator(mode="after")
    def _slides_evenly(self) -> Self:
        if self.slide_ms is not None and self.window_ms % self.slide_ms != 0:
            msg = (
                f"window {format_duration(self.window_ms)} must be a whole multiple of slide "
                f"{format_duration(self.slide_ms)}: windows are put together from slides"
            )
            raise ValueError(msg)
        return self

    @property
    def step_ms(self) -> int:
        """Distance between the starts of two neighbouring windows."""
        return self.slide_ms or self.window_ms


class Sessions(Section):
    gap_ms: Positive = Field(default=300_000, alias="gap")
    max_duration_ms: Positive = Field(default=86_400_000, alias="max_duration")
    retain_ms: Positive = Field(default=604_800_000, alias="retain")
    buckets: int | None = Field(default=None, gt=0, le=4096)
    """The number of state tables that devices are spread over; None for the checkpoint's, one a core in a new one."""


class Redis(Section):
    url: SecretStr
    """With `cluster`, of any nodes of a Redis Cluster, separated by commas."""
    password_file: Path | None = None
    """Replaces the password of the URL."""
    ca_file: Path | None = None
    """Certificates to trust, for rediss://; the system's when not given."""
    cluster: bool = False
    prefix: str = "tidemark"
    shards: int = Field(default=1, gt=0, le=1_024)
    """The number of stores that keys are spread over by hash tags (schemas/redis.md). A prefix keeps the number it began with."""
    feed_length: int = Field(default=10_000, gt=0)
    feed_retain_ms: Positive = Field(default=86_400_000, alias="feed_retain")
    """The change feed keeps about `feed_length` entries of up to 100 keys, and none that are much older than this."""
    timeout_ms: Positive = Field(default=5_000, alias="timeout")
    retry_for_ms: NotNegative = Field(default=30_000, alias="retry_for")
    """How long the writes of a batch are retried, with back-off, before the batch fails and is replayed."""
    chunk: int = Field(default=1_000, gt=0, le=10_000)
    driver_rows: int = Field(default=100_000, ge=0)
    """The driver publishes a batch of at most this many records; the executors publish a larger one."""

    @field_validator("url")
    @classmethod
    def _is_redis_url(cls, url: SecretStr) -> SecretStr:
        if not _REDIS_URL.fullmatch(url.get_secret_value()):  # no part of it is shown: any may be the password
            msg = (
                "must be redis://user@host:6379/0, rediss:// for TLS, or unix:///path. In user and password, write %2F for /, "
                "and so on for all but letters, digits and -._~!$&'()*+,;=: or use password_file"
            )
            raise ValueError(msg)
        return url

    @model_validator(mode="after")
    def _suits_a_cluster(self) -> Self:
        url = urlsplit(self.url.get_secret_value())
        if self.shards > 1 and set(self.prefix) & set("{}"):
            msg = f"prefix {self.prefix!r} must not have braces: redis.shards = {self.shards} puts hash tags around it"
            raise ValueError(msg)
        if not self.cluster:
            if "," in url.netloc.rpartition("@")[2]:
                msg = "url names several hosts: set cluster = true if they are nodes of a Redis Cluster"
                raise ValueError(msg)
            return self
        if self.shards == 1 and not re.match(r"[^{]*\{[^}]+\}", self.prefix):
            msg = (
                "shards = 1 leaves a cluster one slot: choose more, such as 4 for each primary, or give prefix a hash tag, "
                f'such as "{{{self.prefix}}}"'
            )
            raise ValueError(msg)
        if url.scheme == "unix" or url.path not in {"", "/", "/0"} or "db=" in url.query:
            msg = "url must name nodes by host and port, and no database: a Redis Cluster has only 0"
            raise ValueError(msg)
        return self


class Metrics(Section):
    address: str = "127.0.0.1"
    port: int = Field(default=9400, ge=0, le=65_535)
    """0 takes a free port, and the log names it."""


class Quality(Section):
    expectations: Path | None = None
    """The file of expectations that samples of the readings are checked against; `tidemark profile` writes one."""
    every_ms: Annotated[Duration, Field(ge=1_000, le=YEAR_MS)] = Field(default=300_000, alias="every")
    sample: int = Field(default=5_000, gt=0, le=100_000)
    """The number of records in a sample, the newest of all partitions."""


class Otel(Section):
    endpoint: str
    """The URL at which a collector takes traces: OTLP over HTTP, in Protobuf."""
    sample_ratio: float = Field(default=1.0, gt=0, le=1)
    """The share of batches that are traced."""

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if not _OTLP_URL.fullmatch(value):
            msg = "must be http://host:port/path or https://..., without user and password; see OTEL_EXPORTER_OTLP_HEADERS"
            raise ValueError(msg)
        return value


class Settings(Section):
    service: Service
    kafka: Kafka
    input: Input
    registry: Registry | None = None
    admission: Admission = Admission()
    reference: Reference | None = None
    views: tuple[View, ...] = Field(min_length=1)
    sessions: Sessions = Sessions()
    redis: Redis
    metrics: Metrics = Metrics()
    quality: Quality = Quality()
    otel: Otel | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = Counter(view.name for view in self.views)
        problems = [f"views: the name {n!r} is used more than once" for n in sorted(names) if names[n] > 1]

        def unknown(place: str, names: Iterable[str], known: Collection[str], what: str) -> list[str]:
            choice = ", ".join(sorted(known))
            return [f"{place}: {name!r} is no {what}; there are {choice}" for name in names if name not in known]

        measures = self.input.measures
        of_reference = () if self.reference is None else (*self.reference.columns, *self.reference.limit_columns)
        for name in self.input.columns:
            others = {"measure of [input]": measures, "column of [reference]": of_reference}
            problems += [f"input.columns: {name!r} is a {what}, too" for what, each in others.items() if name in each]
        problems += self.input.shared_paths()
        for view in self.views:
            problems += unknown(f"views.{view.name}.measures", view.measures or (), measures, "measure of [input]")
            if view.measures is None and not measures:
                problems.append(
                    f"views.{view.name}: [input] has no measures. Name some, or count readings with measures = []"
                )
            if view.measures == () and EVENTS in measures:
                problems.append(
                    f"views.{view.name}.measures: is empty, so no measure of [input] may be called {EVENTS!r}"
                )
            if self.reference is None or self.reference.columns:  # else only the database has the list of columns
                columns = {
                    "device",
                    *self.input.columns,
                    *(self.reference.columns if self.reference is not None else ()),
                }
                problems += unknown(f"views.{view.name}.by", view.by, columns, "column to group by")
        problems += unknown("admission.ranges", self.admission.ranges, measures, "measure of [input]")
        if self.reference is not None:
            problems += unknown("reference.ranges", self.reference.ranges, measures, "measure of [input]")
        if self.registry is not None and self.input.format == "avro" and self.input.reader_schema is None:
            problems.append(
                "input.reader_schema: is missing. With a [registry] name the id whose schema the records are read with"
            )
        if self.pane_ms < 1_000:
            problems.append(
                f"views: the windows' lengths and slides have the common measure {self.pane_ms} ms, the limit is 1 s; "
                "choose lengths that are multiples of a second or more"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def pane_ms(self) -> int:
        """The longest interval that divides every window and every slide."""
        return reduce(math.gcd, [view.step_ms for view in self.views])

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """The lowest and highest value of each measure that is admitted; -LARGEST and LARGEST without a range."""
        return {name: self.admission.ranges.get(name, (-LARGEST, LARGEST)) for name in self.input.measures}

    @property
    def grouped_columns(self) -> tuple[str, ...]:
        """The columns of the record that a view groups by, in the order of [input]."""
        grouped = {name for view in self.views for name in view.by}
        return tuple(name for name in self.input.columns if name in grouped)

    @property
    def buckets(self) -> int:
        """The number of buckets; 1 without `sessions.buckets`, as for a batch run over the past, which keeps no state."""
        return self.sessions.buckets or 1

    def with_buckets(self, number: int) -> Self:
        """Return these settings with a number of buckets."""
        return self.model_copy(update={"sessions": self.sessions.model_copy(update={"buckets": number})})

    def view_measures(self, view: View) -> tuple[str, ...]:
        """Return the measures that a view aggregates, in the order of [input]; EVENTS for a view that counts readings."""
        if view.measures == ():
            return (EVENTS,)
        return tuple(m for m in self.input.measures if view.measures is None or m in view.measures)

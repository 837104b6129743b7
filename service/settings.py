"""Settings: one TOML file and the environment, validated once into frozen models.

Every key has a default but the addresses. Durations and sizes are written with their unit ("10 s", "64 KiB") and kept as
integers whose names say the unit. All problems are reported together, each with its key, its value and what is allowed;
an unknown key is a problem. A secret comes from a file (`password_file`) or the environment and prints as `***`.

Environment: `TIDEMARK_<SECTION>__<KEY>` overrides a scalar key, as in `TIDEMARK_REDIS__URL`.
"""

import math
import os
import re
import tomllib
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from service.errors import SettingsError
from service.units import Duration, Size, format_duration

NAME = re.compile(r"^[a-z][a-z0-9_]{0,62}\Z")
REJECTS = re.compile(r"^[A-Za-z0-9._-]+\Z")
RESERVED_MEASURES = frozenset(
    {"device", "bucket", "event_ms", "broker_ms", "reject", "status", "last_seen", "session", "reference"}
) | {"epoch", "batch", "updated", "from_partition", "early", "skewed"}
"""Columns of the pass and fields of a device's hash: a measure of that name would be one of them."""
RECORD_KEY = "$key"
"""`device_id = "$key"` takes the device id from the Kafka record's key."""

LARGEST = 1e150
"""A measure without a range is admitted up to this: one value beyond it would make a whole site's deviation infinite."""
YEAR_MS = 366 * 86_400_000
"""No duration is longer."""

# A path may stand in a setting; a duration has bounds that no clock or integer can break.
Positive = Annotated[Duration, Field(gt=0, le=YEAR_MS)]
NotNegative = Annotated[Duration, Field(ge=0, le=YEAR_MS)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Login(Section):
    """A section with a user and a password."""

    user: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None

    def secret(self) -> str | None:
        """The password, from the file if one is named."""
        if self.password_file is not None:
            return self.password_file.read_text(encoding="utf-8").strip()
        return self.password.get_secret_value() if self.password is not None else None


def _name(value: str) -> str:
    if not NAME.match(value):
        msg = "must be a name: lower-case letters, digits and _, a letter first, at most 63"
        raise ValueError(msg)
    return value


class Service(Section):
    name: str = "tidemark"
    checkpoint: str
    """A folder or URL that only this service writes; state, offsets and the last good reference live there."""
    trigger_ms: NotNegative = Field(default=0, alias="trigger")
    """Least time between the starts of two batches; 0 starts the next batch as soon as the last one ends."""
    lease_ms: Positive = Field(default=10_000, alias="lease")

    @field_validator("name")
    @classmethod
    def _is_name(cls, value: str) -> str:
        return _name(value)


class Kafka(Login):
    bootstrap: str
    topics: tuple[str, ...] = Field(min_length=1)
    group: str = "tidemark"
    """Consumer group to which the offsets of finished batches are committed, for Kafka's own tools; it assigns nothing."""
    starting: Literal["earliest", "latest"] = "earliest"
    on_data_loss: Literal["stop", "continue"] = "stop"
    """When records are gone that were not read yet: end with a DataLossError, or go on and count them."""
    max_per_batch: int = Field(default=3_000_000, gt=0)
    rejects: str = "{topic}.rejects"
    ca_file: Path | None = None
    """PEM file of the certificates to trust; the system's when not given. It turns TLS on, and so does `user`."""
    certificate: Path | None = None
    """PEM file of the client's own certificate, for mutual TLS; `key` is its private key, PEM in PKCS #8."""
    key: Path | None = None
    options: Mapping[str, str] = Field(default_factory=dict, repr=False)
    """Options of every Kafka client, in librdkafka's names, such as `security.protocol`: service/kafka/options.py."""

    @field_validator("rejects")
    @classmethod
    def _names_a_topic(cls, value: str) -> str:
        if value.count("{topic}") != 1 or value == "{topic}" or not REJECTS.match(value.replace("{topic}", "")):
            msg = "must be {topic} with letters, digits, . _ or - before or after it, such as '{topic}.rejects'"
            raise ValueError(msg)
        return value

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


class Input(Section):
    format: Literal["avro", "json"] = "avro"
    schemas: Path = Path("schemas/avro")
    """Folder of `<id>.avsc`, each the schema of writers; not used with a [registry]."""
    reader_schema: int | None = None
    """The id whose schema is the reader's; the highest one in the folder when not given."""
    schema_retry_ms: Positive = Field(default=60_000, alias="schema_retry")
    """How long an id that could not be resolved is not looked up again."""
    device_id: str = "device_id"
    event_time: str = "event_time"
    event_time_unit: Literal["logical", "s", "ms", "us", "iso"] = "ms"
    measures: Mapping[str, str] = Field(min_length=1)
    """Measure name -> the field's path in the record, dots between nested names."""

    @field_validator("measures")
    @classmethod
    def _are_names(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name in value:
            _name(name)
            if name in RESERVED_MEASURES:
                msg = f"{name!r} is a name of Tidemark's own; call the measure something else, its field may keep the name"
                raise ValueError(msg)
        return value


class Registry(Login):
    url: str
    """http:// or https://; several addresses of one registry with commas between, tried in order."""
    ca_file: Path | None = None
    """Certificates to trust, for https; the system's when not given."""
    certificate: Path | None = None
    """PEM file of the client's own certificate, for mutual TLS; `key` is its private key."""
    key: Path | None = None
    options: Mapping[str, str] = Field(default_factory=dict, repr=False)
    """Options of Confluent's client, for OAuth: then `user` and the password are the client id and secret."""
    subjects: tuple[str, ...] = ()
    """Whose schemas are decoded, those at the start and those that come; `<topic>-value` of each topic when empty."""
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
    """When all input has been silent, and all of it counted, for that long, the clock less this closes what is open."""
    skewed_after: int = Field(default=5, gt=0)
    """A device is marked skewed when so many of its readings were early ..."""
    skewed_for_ms: Positive = Field(default=600_000, alias="skewed_for")
    """... with no longer than this between two of them; until its readings were admitted for that long, and none was early."""
    max_devices: int = Field(default=1_000_000, ge=0)
    """While the state has so many, no other device is admitted; 0 for no limit."""
    max_bytes: Size = Field(default=65_536, gt=0, le=(1 << 31) - 1)
    ranges: Mapping[str, tuple[float, float]] = Field(default_factory=dict)
    unknown_device: Literal["keep", "reject"] = "keep"

    @field_validator("ranges")
    @classmethod
    def _are_ranges(cls, value: Mapping[str, tuple[float, float]]) -> Mapping[str, tuple[float, float]]:
        for measure, (low, high) in value.items():
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                msg = f"{measure}: [{low}, {high}] must be two finite numbers, the lower one first"
                raise ValueError(msg)
        return value

    @property
    def watermark_delay_ms(self) -> int:
        """With this delay a reading that was admitted is never behind the watermark in steady flow."""
        return self.max_delay_ms + self.max_ahead_ms


class Reference(Login):
    url: str
    """A JDBC URL without credentials, such as `jdbc:postgresql://host/db` or `jdbc:sqlite:/path/devices.db`."""
    query: str
    key: str = "device_id"
    expectations: Path = Path("schemas/reference.expectations.json")
    refresh_ms: Positive = Field(default=300_000, alias="refresh")
    max_age_ms: Positive = Field(default=86_400_000, alias="max_age")
    timeout_ms: Positive = Field(default=10_000, alias="timeout")
    max_shrink: float = Field(default=0.2, ge=0, le=1)
    """Share of the last snapshot's rows that the next one may lack."""
    columns: tuple[str, ...] = ()
    """The query's columns apart from the key, in order: what views group by and device hashes carry; all of them when empty."""
    ranges: Mapping[str, tuple[str, str]] = Field(default_factory=dict)
    """Measure -> the columns of its lowest and highest value, for devices that have limits of their own: reference/limits.py."""
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
    name: str
    by: tuple[str, ...] = ()
    """Columns to group by: `device` or reference columns; none means over all devices."""
    window_ms: Positive = Field(alias="window")
    slide_ms: Positive | None = Field(default=None, alias="slide")
    measures: tuple[str, ...] = ()
    """Measures to aggregate; all of them when empty."""
    retain_ms: Positive = Field(default=86_400_000, alias="retain")

    @field_validator("name")
    @classmethod
    def _is_name(cls, value: str) -> str:
        return _name(value)

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
    buckets: int = Field(default=16, gt=0, le=4096)
    """Devices are spread over this many state tables; it is part of the checkpoint and cannot change with it."""


class Redis(Section):
    url: SecretStr
    password_file: Path | None = None
    """Replaces the password of the URL."""
    ca_file: Path | None = None
    """Certificates to trust, for rediss://; the system's when not given."""
    prefix: str = "tidemark"
    feed_length: int = Field(default=100_000, gt=0)
    timeout_ms: Positive = Field(default=5_000, alias="timeout")
    retry_for_ms: NotNegative = Field(default=30_000, alias="retry_for")
    """How long one batch's writes are tried again, with back-off, before the batch fails and is replayed."""
    chunk: int = Field(default=1_000, gt=0, le=10_000)
    driver_rows: int = Field(default=100_000, ge=0)
    """A batch of at most this many records is published from the driver, a larger one from the executors."""


class Metrics(Section):
    address: str = "127.0.0.1"
    port: int = Field(default=9400, ge=0, le=65_535)
    """0 takes a free port, which the log names."""


class Quality(Section):
    expectations: Path | None = None
    """What samples of the readings are held against while the service runs, as `tidemark profile` writes it; none: nothing is."""
    every_ms: Annotated[Duration, Field(ge=1_000, le=YEAR_MS)] = Field(default=300_000, alias="every")
    sample: int = Field(default=5_000, gt=0, le=100_000)
    """Records, the newest of all partitions."""


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

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        problems = []
        names = [view.name for view in self.views]
        problems += [
            f"views: the name {n!r} is used more than once" for n in sorted({n for n in names if names.count(n) > 1})
        ]
        measures = set(self.input.measures)
        allowed = None
        if self.reference is None:
            allowed = {"device"}
        elif self.reference.columns:
            allowed = {"device", *self.reference.columns}
        for view in self.views:
            problems += [
                f"views.{view.name}.measures: {m!r} is no measure of [input]; there are {', '.join(sorted(measures))}"
                for m in view.measures
                if m not in measures
            ]
            problems += [
                f"views.{view.name}.by: {c!r} is no column to group by; there are {', '.join(sorted(allowed))}"
                for c in view.by
                if allowed is not None and c not in allowed
            ]
        problems += [
            f"admission.ranges: {m!r} is no measure of [input]; there are {', '.join(sorted(measures))}"
            for m in self.admission.ranges
            if m not in measures
        ]
        problems += [
            f"reference.ranges: {m!r} is no measure of [input]; there are {', '.join(sorted(measures))}"
            for m in (self.reference.ranges if self.reference is not None else ())
            if m not in measures
        ]
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
        """The longest interval that every window of every view is put together from."""
        return reduce(math.gcd, [view.step_ms for view in self.views])

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """What a value of each measure may be: its range, else what can still be squared and added up."""
        return {name: self.admission.ranges.get(name, (-LARGEST, LARGEST)) for name in self.input.measures}

    def view_measures(self, view: View) -> tuple[str, ...]:
        """The measures a view aggregates, in the order of [input]."""
        return tuple(m for m in self.input.measures if not view.measures or m in view.measures)


def load(path: Path, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read, override from the environment, validate.

    Raises SettingsError with every problem in one message. Relative paths in the file are taken from the file's folder.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path}: the settings file cannot be read ({error.strerror})"
        raise SettingsError(msg, remedy="Name the file with --config") from error
    except ValueError as error:  # also a number of more digits than Python reads
        msg = f"{path}: is not TOML: {error}"
        raise SettingsError(msg, remedy="See https://toml.io for the format") from error
    return parse(_override(document, environment), where=str(path), folder=path.parent)


def parse(document: Mapping[str, Any], *, where: str = "settings", folder: Path | None = None) -> Settings:
    """Validate a document of sections; raises SettingsError naming each problem's key, value and what is allowed."""
    try:
        settings = Settings.model_validate(dict(document))
    except ValidationError as error:
        lines = [line for item in error.errors() for line in _problems(item)]
        msg = f"{where}: {len(lines)} problem{'s' if len(lines) > 1 else ''}:\n  " + "\n  ".join(lines)
        raise SettingsError(msg) from None
    return _resolve(settings, folder) if folder is not None else settings


def _problems(item: Any) -> list[str]:
    """What pydantic says of one place, as lines for people."""
    if not item["loc"]:
        return str(item["msg"]).removeprefix("Value error, ").split("\n")
    return [_problem(item)]


_SECRET = ("url", "password", "options", "secret")
"""Words in a key whose value is never shown; a section's own place may hold an address, and of Redis only numbers are shown."""


def _problem(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    kind, value = item["type"], item["input"]
    if kind == "extra_forbidden":
        return f"{place}: unknown key. Remove it or mend its spelling"
    if kind == "missing":
        return f"{place}: is missing and has no default"
    secret = any(word in place for word in _SECRET) or place in {"redis", "reference"}
    secret = secret or (place.startswith("redis.") and not isinstance(value, int | float))
    shown = "" if isinstance(value, dict | list) else f" = {'***' if secret else repr(value)}"
    return f"{place}{shown}: {item['msg'].removeprefix('Value error, ')}"


def _override(document: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    for variable, value in environment.items():
        if not variable.startswith("TIDEMARK_") or "__" not in variable:
            continue
        section, _, key = variable.removeprefix("TIDEMARK_").lower().partition("__")
        if not isinstance(document.get(section, {}), dict):
            msg = f"{variable}: [[{section}]] is a list, which the environment cannot override"
            raise SettingsError(msg, remedy="Change it in the settings file")
        document[section] = {**document.get(section, {}), key: value}
    return document


def _resolve(settings: Settings, folder: Path) -> Settings:
    """Paths in a settings file are relative to it, so that a service starts from any working directory."""

    def placed(section: Any) -> Any:
        if not isinstance(section, Section):
            return section
        paths = {name: (folder / value).resolve() for name, value in section if isinstance(value, Path)}
        return section.model_copy(update=paths)

    sections = {name: placed(section) for name, section in settings}
    checkpoint = settings.service.checkpoint
    if ":" not in checkpoint:
        sections["service"] = settings.service.model_copy(update={"checkpoint": str((folder / checkpoint).resolve())})
    return settings.model_copy(update=sections)

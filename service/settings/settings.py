"""The settings: all sections, and what must hold between them."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticKnownError

from service.settings import source, topics_pattern
from service.settings.formats import TRAITS
from service.settings.input import EVENT_TIME, MOST_MEASURES, Admission, Input, NamedInput, Registry
from service.settings.kafka import Kafka
from service.settings.outlets import Outlet
from service.settings.redis import Redis
from service.settings.reference import Reference
from service.settings.section import HOST, LARGEST, YEAR_MS, Name, NotNegative, Positive, Section, Text, rule
from service.settings.views import EVENTS, Sessions, View
from service.units import Duration, format_duration
from state.rules import ENDLESS_MS

_OTLP = rule(
    re.compile(rf"https?://{HOST}(/[^@?#\s]*)?").fullmatch,
    "must be http://host:port/path or https://..., without user and password; see OTEL_EXPORTER_OTLP_HEADERS",
)


def _outlives_an_answer(lease_ms: int) -> bool:
    return lease_ms >= 100


_LEASE = rule(_outlives_an_answer, "must be at least 100 ms, such as '10 s'; a number without a unit is one of ms")


def _unknown(place: str, names: Iterable[str], known: Collection[str], what: str) -> list[str]:
    choice = ", ".join(sorted(known))
    return [f"{place}: {name!r} is no {what}; there are {choice}" for name in names if name not in known]


class Service(Section):
    name: Name = "tidemark"
    """Name of the query and of the application in Spark: lower-case letters, digits and _. Each of several pipelines in
    one process needs a name of its own; there the default is the file's name.
    """
    checkpoint: Text = Field(examples=["/var/lib/tidemark/checkpoint"])
    """A folder or URL that only this service writes: offsets, state, the last good reference. The driver and every
    executor must share a folder. With admission.distinct it must be a folder.
    """
    trigger_ms: NotNegative = Field(default=0, alias="trigger")
    """Least time between the starts of two batches; 0 starts the next batch when the last one ends."""
    target_batch_ms: NotNegative = Field(default=5_000, alias="target_batch")
    """The time that a batch may take while records wait. Batches are sized for it by the rate of the last ones, up to
    kafka.max_per_batch; a process begins with 100,000 records. Shorter: newer values and a quicker stop during a
    catch-up. Longer: more records a second. A longer trigger takes its place. 0: kafka.max_per_batch alone.
    """
    catch_up_update_every_ms: NotNegative = Field(default=20_000, alias="catch_up_update_every")
    """How long open values may wait before they are written while the service reads a backlog, in addition to their
    update_every: as long as another batch as large follows, which changes most of them again. The status of a device
    waits with it. Finals and closed sessions are written with every batch. 0: each batch writes all that it changes.
    """
    lease_ms: Annotated[Positive, _LEASE] = Field(default=10_000, alias="lease")
    """How long the right to write lasts without being renewed, at least 100 ms: how long a second instance waits after a
    crash.
    """
    fill_rate: int = Field(default=20_000, gt=0, le=10_000_000)
    """Records of the past a second that are read for views added while the service runs, on average. A larger number
    fills views sooner and takes more from the stream.
    """
    log: Literal["text", "json"] = "text"
    """The form of the log on standard error: "text", or "json" for one JSON object a line."""


class Metrics(Section):
    address: Text = "127.0.0.1"
    """The address that the metrics port listens on."""
    port: int = Field(default=9400, ge=0, le=65_535)
    """The port of metrics and pages; 0 takes a free one, which the log names."""
    hosts: tuple[str, ...] = Field(default=(), examples=[["tidemark.example.com"]])
    """Names with a dot in the address of the pages, as Prometheus and browsers use it. IP addresses, names without a dot, the
    host's own names and those below .local, .internal, .svc and .cluster.local need no entry. Other names get status 421."""


class Quality(Section):
    expectations: Path | None = Field(default=None, examples=["readings.expectations.json"])
    """A Great Expectations suite, as `tidemark profile` draws it. It is read for each check. Default: none, nothing is
    checked.
    """
    every_ms: Annotated[Duration, Field(ge=1_000, le=YEAR_MS)] = Field(default=300_000, alias="every")
    """How often a sample is checked."""
    sample: int = Field(default=5_000, gt=0, le=100_000)
    """Records of a sample: the newest that were read, of all partitions."""


class Otel(Section):
    endpoint: Annotated[str, _OTLP] = Field(examples=["http://127.0.0.1:4318/v1/traces"])
    """Where a collector takes OTLP over HTTP. Headers, such as a token, are in the environment:
    OTEL_EXPORTER_OTLP_HEADERS.
    """
    sample_ratio: float = Field(default=1.0, gt=0, le=1)
    """Share of the batches that are traced."""


_WITH_SCHEMAS = tuple(name for name, each in TRAITS.items() if each.kind is not None)


class Settings(Section):
    service: Service
    """The service as a process."""
    kafka: Kafka
    """Where records are read. A user logs in with SCRAM-SHA-512 over TLS; `ca_file` alone turns TLS on. Another
    mechanism, such as OIDC: docs/operator/kafka.md#logins.
    """
    inputs: tuple[NamedInput, ...] = ()
    """Several inputs, each with topics of its own and the shape of their records, in place of [input] and kafka.topics.
    A device may send one measure on one topic and another on a second one: a reading is null in the measures that its
    input lacks. Measures and columns of the same name are one measure and one column, in one unit. Further keys: those
    of [input]. Default: none.
    """
    input: Input | None = None
    """The shape of the records: how a record becomes a reading."""
    registry: Registry | None = None
    """Schemas from a registry with Confluent's API, in place of the folder of [input]. Default: none."""
    admission: Admission = Admission()
    """Which readings are admitted."""
    reference: Reference | None = None
    """Facts about devices, from a database. Without this section views can only group by device and by columns of the
    records. Default: none.
    """
    views: tuple[View, ...] = Field(min_length=1)
    """What is computed: one table for each view, at least one. The lengths and slides of all views must have a common
    measure of 1 s or more.
    """
    sessions: Sessions = Sessions()
    """Sessions of devices, and what is kept of each device."""
    redis: Redis
    """Where values are published."""
    metrics: Metrics = Metrics()
    """Where metrics, /status and the pages are served."""
    quality: Quality = Quality()
    """Expectations of the readings: checked on samples, in parallel with the stream, as metrics and a page at /quality.
    They reject nothing.
    """
    otel: Otel | None = None
    """Traces of batches by OpenTelemetry. Needs the extra tidemark-service[otel]. Default: none, nothing is traced."""
    outlets: tuple[Outlet, ...] = ()
    """Where final windows and closed sessions go for good: docs/outlets.md. One table for each outlet. Default: none.
    """

    @model_validator(mode="before")
    @classmethod
    def _has_topics_of_inputs(cls, value: Any) -> Any:
        """Fill in kafka.topics and its pattern from [[inputs]], so that a part that reads Kafka sees one list."""
        if not isinstance(value, Mapping):
            return value
        kafka = value.get("kafka")
        if not value.get("inputs") or not isinstance(kafka, Mapping) or {"topics", "topics_pattern"} & kafka.keys():
            return value
        given = [each for each in value["inputs"] if isinstance(each, Mapping)]
        lists = [each.get("topics") for each in given]
        names = [name for each in lists if isinstance(each, Sequence) for name in each if isinstance(name, str)]
        pattern = topics_pattern.any_of([each for form in given if isinstance(each := form.get("topics_pattern"), str)])
        if not names and pattern is None:
            return value
        return {**value, "kafka": {**kafka, "topics": list(dict.fromkeys(names)), "topics_pattern": pattern}}

    @field_validator("input", mode="before")
    @classmethod
    def _is_there_without_inputs(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.data.get("inputs") == ():
            raise PydanticKnownError("missing")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = Counter(view.name for view in self.views)
        problems = [f"views: the name {n!r} is used more than once" for n in sorted(names) if names[n] > 1]
        problems += self._crossing_inputs()

        measures, section = self.measures, "[[inputs]]" if self.inputs else "[input]"
        problems += [
            f"{section}: has {many} measures, the limit is {MOST_MEASURES}. Read the others by another service"
            for many in [len(measures)]
            if many > MOST_MEASURES
        ]
        of_reference = () if self.reference is None else (*self.reference.columns, *self.reference.limit_columns)
        for form in self.forms:
            for name in form.columns:
                others = {f"measure of {section}": measures, "column of [reference]": of_reference}
                problems += [
                    f"{form.place}.columns: {name!r} is a {what}, too" for what, each in others.items() if name in each
                ]
            problems += [
                *form.misplaced_paths(),
                *form.conditional_paths(),
                *form.decimal_problems(),
                *form.shared_paths(),
                *form.crossing_paths(),
            ]
            problems += form.topic_problems(form.topics if isinstance(form, NamedInput) else self.kafka.topics)
        for view in self.views:
            problems += _unknown(f"views.{view.name}.measures", view.measures or (), measures, f"measure of {section}")
            if view.measures is None and not measures:
                problems.append(
                    f"views.{view.name}: {section} has no measures. Name some, or count readings with measures = []"
                )
            if view.measures == () and EVENTS in measures:
                problems.append(
                    f"views.{view.name}.measures: is empty, so no measure of {section} may be called {EVENTS!r}"
                )
            if self.reference is None or self.reference.columns:  # else only the database has the list of columns
                columns = {"device", *self.columns, *(self.reference.columns if self.reference is not None else ())}
                problems += _unknown(f"views.{view.name}.by", view.by, columns, "column to group by")
            if (after_ms := view.final_after_ms) is not None and after_ms > self.admission.max_delay_ms:
                most = format_duration(self.admission.max_delay_ms)
                problems.append(
                    f"views.{view.name}.final_after {format_duration(after_ms)} is more than max_delay {most}: a later reading "
                    "is in no window. Shorten final_after, or lengthen max_delay"
                )
        problems += self._crossing_views()
        problems += _unknown("admission.ranges", self.admission.ranges, measures, f"measure of {section}")
        problems += _unknown(
            "admission.distinct", self.admission.distinct, {"device", EVENT_TIME, *self.columns}, f"column of {section}"
        )
        problems += self.admission.duplicate_problems()
        problems += _unknown("sessions.measures", self.sessions.measures or (), measures, f"measure of {section}")
        delay_ms, most_ms = self.sessions.status_delay_ms or 0, self.admission.watermark_delay_ms
        if delay_ms > most_ms:
            problems.append(
                f"sessions.status_delay: {format_duration(delay_ms)} is more than max_delay and max_ahead of [admission], "
                f"{format_duration(most_ms)}, after which the watermark says so. Shorten it, or leave it out"
            )
        if self.reference is not None:
            problems += _unknown("reference.ranges", self.reference.ranges, measures, f"measure of {section}")
        for form in self.forms:
            problems += [f"{form.place}.{problem}" for problem in self._problems_of(form)]
        problems += self._crossing_outlets()
        if self.pane_ms < 1_000:
            problems.append(
                f"views: the windows' lengths and slides have the common measure {self.pane_ms} ms, the limit is 1 s; "
                "choose lengths that are multiples of a second or more"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _crossing_views(self) -> Iterator[str]:
        """Yield a problem for each view that is to be put together of another one's windows, and cannot be."""
        if any(view.source is not None for view in self.views):
            from service.settings import rollups  # noqa: PLC0415 - it imports NumPy, which other settings do not need

            yield from rollups.problems(self.views, self.view_measures)

    def _problems_of(self, form: Input) -> Iterator[str]:
        """Yield what the keys of an input, and the registry, do not allow."""
        has_reader = not form.is_json or form.framing == "none"
        if self.registry is not None and has_reader and form.reader_schema is None:
            yield "reader_schema: is missing. With a [registry] name the id whose schema the records are read with"
        yield from self._schema_problems(form)
        if form.array and not form.traits.has_arrays:
            yield f"array: needs format = 'json', and the format is {form.format!r}"
        if form.time_zone != "UTC" and form.format != "avro" and form.event_time_unit != "iso":
            yield "time_zone: needs event_time_unit = 'iso' or an Avro timestamp; a number has no zone"
        if form.event_time_part is not None and form.event_time_unit not in {"s", "iso"}:
            yield "event_time_part: needs event_time_unit = 's', for nanoseconds, or 'iso', for the time of day"
        if form.event_time == source.TIMESTAMP:
            for key in ("event_time_part", "event_time_pattern", "time_zone"):
                if key in form.model_fields_set:
                    yield f"{key}: is not read with event_time = {source.TIMESTAMP!r}, which is the record's time in Kafka"

    def _schema_problems(self, form: Input) -> Iterator[str]:
        """Yield what the keys about schemas do not allow."""
        of_framing = {"single-object": ("avro",), "none": ("avro", "protobuf")}.get(form.framing, _WITH_SCHEMAS)
        if form.framing != "confluent" and form.format not in of_framing:
            yield f"framing: {form.framing!r} is for the formats {', '.join(of_framing)}, and the format is {form.format!r}"
        if form.record_type is not None and form.format not in {"avro", "protobuf"}:
            yield f"record_type: is for Avro and Protobuf, and the format is {form.format!r}"
        if form.framing == "none" and form.format == "protobuf" and form.record_type is None:
            yield "record_type: is missing. Without a header name the message that all records are, such as 'acme.Reading'"
        if form.key_schema is not None and not form.key_paths:
            yield "key_schema: no setting reads a field of the key; device_id = '$key.id' does"
        if form.others == "ignore" and not form.has_schemas:
            yield f"others: is for records with a schema, and the format is {form.format!r}; use where"
        is_glue = form.framing in {"glue", "glue-zlib"}
        if is_glue != bool(form.schema_versions) or (is_glue and self.registry is not None):
            yield (
                "schema_versions: framing = 'glue' or 'glue-zlib' needs the UUID of each schema id, and a folder of schemas; "
                "no other framing has them"
            )

    def _crossing_outlets(self) -> Iterator[str]:
        """Yield a problem for each name or folder of two outlets, and for each that the other sections do not allow."""
        names = Counter(outlet.name for outlet in self.outlets)
        yield from (f"outlets: the name {n!r} is used more than once" for n in sorted(names) if names[n] > 1)
        for one, other in combinations((outlet for outlet in self.outlets if not outlet.is_shared), 2):
            yield from one.overlap(f"outlets.{one.name} and outlets.{other.name}", other, self.kafka, self.kafka)
        endless = {view.name for view in self.views if view.is_endless}
        for outlet in self.outlets:
            views = outlet.views or ()
            yield from _unknown(f"outlets.{outlet.name}.views", views, {view.name for view in self.views}, "view")
            for name in sorted(endless.intersection(views)):
                yield f"outlets.{outlet.name}.views: {name!r} has no windows, so nothing is final"
            yield from outlet.problems(self.kafka, has_registry=self.registry is not None)

    def _crossing_inputs(self) -> Iterator[str]:
        """Yield a problem for each name, topic or column that two inputs, or [input] and another section, give otherwise."""
        if self.inputs and self.input is not None:
            yield "input: is given beside [[inputs]]. Make it one of them, with a name and topics"
        if not self.inputs:
            return
        if set(self.kafka.topics) != {topic for form in self.inputs for topic in form.topics}:
            yield "kafka.topics: is given beside [[inputs]]. Remove it: each input has topics"
        patterns = [form.topics_pattern for form in self.inputs if form.topics_pattern is not None]
        if self.kafka.topics_pattern != topics_pattern.any_of(patterns):
            yield "kafka.topics_pattern: is given beside [[inputs]]. Remove it: each input has a pattern of its own"
        if self.registry is not None and self.registry.subjects:
            yield "registry.subjects: is given beside [[inputs]]. Give each input its subjects"
        for form in self.inputs:
            if form.subjects and self.registry is None:
                yield f"{form.place}.subjects: needs a [registry]"
        names = Counter(form.name for form in self.inputs)
        yield from (f"inputs: the name {n!r} is used more than once" for n in sorted(names) if names[n] > 1)
        places: dict[str, str] = {}
        limits: dict[str, tuple[str, int]] = {}
        for form in self.inputs:
            for topic in form.topics:
                if topic in places:
                    yield f"{form.place}.topics: {topic!r} is a topic of {places[topic]}, too"
                places[topic] = form.place
            for name, column in form.columns.items():
                place, limit = limits.setdefault(name, (form.place, column.max_values))
                if limit != column.max_values:
                    yield (
                        f"{form.place}.columns.{name}: max_values is {column.max_values}, and {limit} in {place}. "
                        "A column has one list of values: give both the same"
                    )

    @property
    def forms(self) -> tuple[Input, ...]:
        """All inputs: [input] alone, or [[inputs]] in the order of the file."""
        return self.inputs if self.input is None else (self.input,)

    @property
    def form(self) -> Input:
        """The input of settings that have one. `split` and `of_topic` return settings with one."""
        [only] = self.forms
        return only

    def split(self) -> tuple[Self, ...]:
        """Return settings for each input, with the input as [input] and its topics and subjects; the same for [input]."""
        return (self,) if self.input is not None else tuple(self._alone(form) for form in self.inputs)

    @property
    def inputs_by_topic(self) -> Mapping[str, Input]:
        return {topic: self.form_of(topic) for topic in self.kafka.topics}

    def form_of(self, topic: str) -> Input:
        """Return a topic's input; the first one where no input has the topic. For each record: it copies nothing."""
        return next((form for form in self.inputs if topic in form.topics), self.forms[0])

    def of_topic(self, topic: str) -> Self:
        """Return settings with `form_of` the topic as [input]."""
        form = self.form_of(topic)
        return self._alone(form) if isinstance(form, NamedInput) else self

    def _alone(self, form: NamedInput) -> Self:
        kafka = self.kafka.model_copy(update={"topics": form.topics})
        registry = self.registry and self.registry.model_copy(update={"subjects": form.subjects})
        return self.model_copy(update={"input": form, "inputs": (), "kafka": kafka, "registry": registry})

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the measures of all inputs. A reading is null in a measure that its input lacks."""
        return tuple(dict.fromkeys(name for form in self.forms for name in form.measures))

    @property
    def topic_inputs(self) -> tuple[int, ...]:
        """The number of the input of each of `kafka.topics`."""
        numbers = {topic: n for n, form in enumerate(self.inputs) for topic in form.topics}
        return tuple(numbers.get(topic, 0) for topic in self.kafka.topics)

    @property
    def columns(self) -> dict[str, int]:
        """The record's columns of all inputs, with their `max_values`."""
        return {name: column.max_values for form in self.forms for name, column in form.columns.items()}

    @property
    def has_filter(self) -> bool:
        """Whether a record may be neither admitted nor rejected: an input has a filter, or arrays, which may be empty."""
        return self.has_arrays or any(
            form.where is not None or form.is_long or "ignore" in {form.tombstones, form.others} for form in self.forms
        )

    @property
    def has_long_inputs(self) -> bool:
        """Whether the measures of an input all have conditions."""
        return any(form.is_long for form in self.forms)

    @property
    def has_arrays(self) -> bool:
        return any(form.is_cut for form in self.forms)

    @property
    def needs_headers(self) -> bool:
        """Whether a value of an input comes from a header of Kafka."""
        return any(form.needs_headers for form in self.forms)

    @property
    def pane_ms(self) -> int:
        """The longest interval that divides every window and every slide; ENDLESS_MS without windows."""
        return reduce(math.gcd, [view.step_ms for view in self.closing_views], 0) or ENDLESS_MS

    @property
    def closing_views(self) -> tuple[View, ...]:
        """The views whose windows the watermark closes."""
        return tuple(view for view in self.views if not view.is_endless)

    @property
    def folded_views(self) -> tuple[View, ...]:
        """The views whose windows are of readings; the others are put together of their windows."""
        return tuple(view for view in self.views if view.reads is None)

    @property
    def rollups(self) -> frozenset[str]:
        """The names in keys of the views that are put together of other views' windows."""
        return frozenset(view.name for view in self.views if view.reads is not None)

    @property
    def leads(self) -> dict[str, int]:
        """How long (ms) before they are final windows are settled, by view, of views with `final_after`."""
        most_ms = self.admission.max_delay_ms
        after_ms = {view.name: most_ms if view.final_after_ms is None else view.final_after_ms for view in self.views}
        return {name: most_ms - ms for name, ms in after_ms.items() if ms < most_ms}

    @property
    def fills(self) -> dict[str, int]:
        """For how long (ms) after a reading windows without one are published, by view, of views with `fill`."""
        return {view.name: view.carry_for_ms for view in self.views if view.fill == "last" and view.carry_for_ms}

    @property
    def closing(self) -> tuple[tuple[str, str], ...]:
        """The views with windows, each with each of its measures: (view, measure)."""
        return tuple((view.name, m) for view in self.closing_views for m in self.view_measures(view))

    @property
    def endless(self) -> tuple[tuple[str, str], ...]:
        """The views without windows, each with each of its measures: (view, measure)."""
        return tuple((view.name, m) for view in self.views if view.is_endless for m in self.view_measures(view))

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """The lowest and highest value of each measure that is admitted; -LARGEST and LARGEST without a range."""
        return {name: self.admission.ranges.get(name, (-LARGEST, LARGEST)) for name in self.measures}

    @property
    def grouped_columns(self) -> tuple[str, ...]:
        """The columns of the record that a view groups by, in the order of the inputs."""
        grouped = {name for view in self.views for name in view.by}
        return tuple(name for name in self.columns if name in grouped)

    def outlet_views(self, outlet: Outlet) -> tuple[str, ...]:
        """Return the names in keys of the views whose windows an outlet takes, in the order of the settings."""
        if outlet.content != "windows":
            return ()
        chosen = [view for view in self.views if outlet.views is None or view.of in outlet.views]
        return tuple(view.name for view in chosen if not view.is_endless)

    @property
    def session_statistics(self) -> dict[str, tuple[str, ...]]:
        """The statistics of order of sessions that each measure has."""
        chosen = self.measures if self.sessions.measures is None else self.sessions.measures
        return {measure: self.sessions.ordered if measure in chosen else () for measure in self.measures}

    @property
    def distinct_columns(self) -> tuple[str, ...]:
        """The columns of the record that tell duplicates."""
        return tuple(name for name in self.admission.distinct if name in self.columns)

    @property
    def buckets(self) -> int:
        """The number of buckets; 1 without `sessions.buckets`, as for a batch run over the past, which keeps no state."""
        return self.sessions.buckets or 1

    def with_buckets(self, number: int) -> Self:
        return self.model_copy(update={"sessions": self.sessions.model_copy(update={"buckets": number})})

    def view_measures(self, view: View) -> tuple[str, ...]:
        """Return the measures that a view aggregates, in the order of the inputs; EVENTS for a view that counts readings."""
        if view.measures == ():
            return (EVENTS,)
        return tuple(m for m in self.measures if view.measures is None or m in view.measures)

    def view_definition(self, view: View) -> dict[str, Any]:
        """Return what a view computes, as JSON has it: all of its settings but the name."""
        return {
            "by": list(view.by),
            "window_ms": view.window_ms,
            "slide_ms": view.step_ms,
            **({} if view.calendar is None else view.calendar.document),
            "measures": list(self.view_measures(view)),
            "from": view.source,
            "where": view.where,
            "statistics": list(view.statistics),
            "carry_for_ms": view.carry_for_ms,
            "fill": view.fill,
            "per": view.per,
            "wraps_at": view.wraps_at,
            "sketches": view.sketches,
            "retain_ms": view.retain_ms,
            "final_after_ms": view.final_after_ms,
            "update_every_ms": view.update_every_ms,
        }

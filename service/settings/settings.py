"""The settings: all sections, and what must hold between them."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable
from functools import reduce
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from service.settings.input import Admission, Input, Registry
from service.settings.kafka import Kafka
from service.settings.outlets import Outlet
from service.settings.redis import Redis
from service.settings.reference import Reference
from service.settings.section import HOST, LARGEST, YEAR_MS, Name, NotNegative, Positive, Section
from service.settings.views import EVENTS, Sessions, View
from service.units import Duration
from state.rules import ENDLESS_MS

_OTLP_URL = re.compile(rf"https?://{HOST}(/[^@?#\s]*)?")


class Service(Section):
    name: Name = "tidemark"
    checkpoint: str
    """A folder or URL that only this service writes: the state, the offsets and the last good reference."""
    trigger_ms: NotNegative = Field(default=0, alias="trigger")
    """Least time between the starts of two batches; 0 starts the next batch as soon as the last one ends."""
    target_batch_ms: NotNegative = Field(default=5_000, alias="target_batch")
    """The time that a batch may take while records wait; 0 for batches of `kafka.max_per_batch` whatever they take."""
    lease_ms: Positive = Field(default=10_000, alias="lease")
    fill_rate: int = Field(default=20_000, gt=0, le=10_000_000)
    """Records of the past a second that are read for new views, on average, beside the query."""
    log: Literal["text", "json"] = "text"
    """The form of the log on standard error: lines of text, or one JSON object a line."""


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
    outlets: tuple[Outlet, ...] = ()

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
        outlets = Counter(outlet.name for outlet in self.outlets)
        problems += [f"outlets: the name {n!r} is used more than once" for n in sorted(outlets) if outlets[n] > 1]
        for outlet in self.outlets:
            problems += unknown(f"outlets.{outlet.name}.views", outlet.views or (), names, "view")
            endless = [view.name for view in self.views if view.is_endless and view.name in (outlet.views or ())]
            problems += [
                f"outlets.{outlet.name}.views: {name!r} has no windows, so nothing is final" for name in endless
            ]
            if outlet.kind == "kafka" and outlet.format == "avro" and self.registry is None:
                problems.append(f"outlets.{outlet.name}.format: avro needs a [registry]; or choose json")
            if outlet.kind == "kafka" and outlet.topic in self.kafka.topics:
                problems.append(f"outlets.{outlet.name}.topic: {outlet.topic!r} is a topic of [kafka], which is read")
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
        """The longest interval that divides every window and every slide; ENDLESS_MS without windows."""
        return reduce(math.gcd, [view.step_ms for view in self.closing_views], 0) or ENDLESS_MS

    @property
    def closing_views(self) -> tuple[View, ...]:
        """The views whose windows the watermark closes."""
        return tuple(view for view in self.views if not view.is_endless)

    @property
    def endless(self) -> tuple[tuple[str, str], ...]:
        """The views without windows, each with each of its measures: (view, measure)."""
        return tuple((view.name, m) for view in self.views if view.is_endless for m in self.view_measures(view))

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """The lowest and highest value of each measure that is admitted; -LARGEST and LARGEST without a range."""
        return {name: self.admission.ranges.get(name, (-LARGEST, LARGEST)) for name in self.input.measures}

    @property
    def grouped_columns(self) -> tuple[str, ...]:
        """The columns of the record that a view groups by, in the order of [input]."""
        grouped = {name for view in self.views for name in view.by}
        return tuple(name for name in self.input.columns if name in grouped)

    def outlet_views(self, outlet: Outlet) -> tuple[str, ...]:
        """Return the names in keys of the views whose windows an outlet takes, in the order of the settings."""
        if outlet.sessions:
            return ()
        chosen = [view for view in self.views if outlet.views is None or view.of in outlet.views]
        return tuple(view.name for view in chosen if not view.is_endless)

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

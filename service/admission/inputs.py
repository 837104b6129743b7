"""Decode the records of all inputs to one set of columns: a record's topic chooses the input, and so the decoder.

A measure and a column that an input lacks are null in its records. With one input the plan has no choice, and is that of its
decoder alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from service.admission import expansion
from service.admission.decode import Decoder
from service.admission.formats import avro, framings
from service.admission.formats.format import FRAMED, KEY, TEXT
from service.admission.schema_sources import SchemaSets
from service.settings import Input, Settings

_INPUT = "input"
"""The column with the number of a record's input."""
MEASURE, COLUMN = "measure_", "column_"
"""Prefixes: a measure may have the name of a Kafka column."""


LISTED = "listed"
"""The column that says whether a record has a measure, for inputs whose measures all have conditions; null for others."""


def add(records: DataFrame, settings: Settings, schemas: SchemaSets, columns: Sequence[str]) -> DataFrame:
    """Decode Kafka records: add `framing`, `decoded`, `device` and `event_ms`, as Decoder has them.

    Each measure is in a column MEASURE + name, and each of the record's `columns` in a column COLUMN + name.
    """
    decoded, decoders = _decoded(records, settings, schemas)

    def of_all(part: Callable[[Decoder], dict[str, Column]], wanted: Sequence[str], prefix: str) -> list[Column]:
        parts = [part(each) for each in decoders]
        return [choose([each.get(name) for each in parts]).alias(f"{prefix}{name}") for name in wanted]

    return decoded.select(
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "framing",
        *expansion.columns(settings),
        *[name for name in expansion.CARRIED if name in records.columns],
        *(expansion.HEADERS if settings.needs_headers else []),
        *([_INPUT] if len(decoders) > 1 else []),
        F.unix_millis("timestamp").alias("broker_ms"),
        choose([each.decoded() for each in decoders]).alias("decoded"),
        choose([each.device() for each in decoders]).alias("device"),
        choose([each.event_ms() for each in decoders]).alias("event_ms"),
        *([choose([each.is_listed() for each in decoders]).alias(LISTED)] if settings.has_long_inputs else []),
        *of_all(Decoder.measures, settings.measures, MEASURE),
        *of_all(Decoder.columns, columns, COLUMN),
    )


@dataclass(frozen=True, slots=True)
class FieldCount:
    """How many records of an input have the field that a setting names: of the `decoded` ones among those `sampled`."""

    setting: str
    path: str
    records: int
    decoded: int
    sampled: int


def field_counts(records: DataFrame, settings: Settings, schemas: SchemaSets) -> list[FieldCount]:
    """Count the records of a sample that have each mapped field, by the decoders of the stream."""
    frame, decoders = _decoded(expansion.expand(records, settings), settings, schemas)
    for n, each in enumerate(decoders):
        is_mine = F.lit(True) if len(decoders) == 1 else F.col(_INPUT) == n
        frame = frame.select("*", is_mine.alias(f"mine_{n}"), (is_mine & each.decoded()).alias(f"whole_{n}"))
    fields = [(n, setting, path) for n, form in enumerate(settings.forms) for setting, path in form.sources]
    has = [(F.col(f"whole_{n}") & decoders[n].has(path)).alias(str(place)) for place, (n, _, path) in enumerate(fields)]
    rows = frame.select(*(f"{of}_{n}" for n in range(len(decoders)) for of in ("mine", "whole")), *has).toArrow()

    def count(name: str) -> int:
        return int(pc.sum(rows[name]).as_py() or 0)

    return [
        FieldCount(setting, path, count(str(place)), count(f"whole_{n}"), count(f"mine_{n}"))
        for place, (n, setting, path) in enumerate(fields)
    ]


def _decoded(records: DataFrame, settings: Settings, schemas: SchemaSets) -> tuple[DataFrame, list[Decoder]]:
    """Return Kafka records with `framing` and the decoded record of each input, and the decoders."""
    forms, max_bytes = settings.forms, settings.admission.max_bytes
    names = ["record"] if len(forms) == 1 else [f"record_{n}" for n in range(len(forms))]
    decoders = [
        Decoder(each.form, max_bytes, schemas[each.form.place], name, each.kafka.topics)
        for each, name in zip(settings.split(), names, strict=True)
    ]
    if len(forms) > 1:
        records = records.select("*", _number(settings).alias(_INPUT))
    if any(form.framing == "glue-zlib" for form in forms):
        expansion.limit_batches(records)
    framed = [
        framings.made(form).alias(FRAMED + name)
        for form, name in zip(forms, names, strict=True)
        if framings.of(form).is_made
    ]
    framed += [
        avro.key(form).alias(KEY + name) for form, name in zip(forms, names, strict=True) if form.key_schema is not None
    ]
    if framed:
        records = records.select("*", *framed)
    for n, (each, name) in enumerate(zip(decoders, names, strict=True)):
        if (text := each.text(None if len(forms) == 1 else F.col(_INPUT) == n)) is not None:
            records = records.select("*", text.alias(TEXT + name))
    decoded = records.select(
        "*",
        choose([each.framing() for each in decoders]).alias("framing"),
        *[
            (F.when(F.col(_INPUT) == n, each.record()) if len(forms) > 1 else each.record()).alias(name)
            for n, (each, name) in enumerate(zip(decoders, names, strict=True))
        ],
    )
    for each, name in zip(decoders, names, strict=True):
        kind = decoded.schema[name].dataType
        assert isinstance(kind, t.StructType)  # noqa: S101
        each.record_type = kind
    return decoded, decoders


def choose(choices: Sequence[Column | None]) -> Column:
    """Return the choice of the record's input; `choices` has one for each input, None for null."""
    if len(choices) == 1:
        return choices[0] if choices[0] is not None else F.lit(None)
    result: Column | None = None
    for number, choice in enumerate(choices):
        if choice is not None:
            result = (
                F.when(F.col(_INPUT) == number, choice)
                if result is None
                else result.when(F.col(_INPUT) == number, choice)
            )
    return F.lit(None) if result is None else result


def of_each(settings: Settings, part: Callable[[Input], Column | None]) -> Column:
    """Return `part` of the input that a record has."""
    return choose([part(form) for form in settings.forms])


def _number(settings: Settings) -> Column:
    """Return the number of a record's input."""
    number: Column | None = None
    for n, each in enumerate(settings.split()):
        matches = F.col("topic").isin(*each.kafka.topics)
        number = F.when(matches, n) if number is None else number.when(matches, n)
    assert number is not None  # noqa: S101
    return number

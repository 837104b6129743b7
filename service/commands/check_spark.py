"""`tidemark check`: Kafka, the reference and the query's plan, as Spark sees them."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from service.admission import filters, inputs, readings
from service.admission.inputs import FieldCount
from service.admission.schema_sources import load_schemas
from service.commands import compatibility
from service.commands.finding import Line, failed, ok
from service.errors import OutletError, ReferenceDataError
from service.kafka import source
from service.outlets import publication
from service.pipeline import builder, command_session, failure
from service.quality import sample
from service.recompute import sources
from service.reference import database
from service.reference.attributes import Index
from service.reference.current_snapshot import in_use
from service.reference.expectations import require_columns, validate
from service.reference.folder import snapshot_folder
from service.settings import Settings
from service.spark import session

_SAMPLE = 1_000
"""Records that `check` filters."""


def start(settings: Settings) -> "Future[SparkSession]":
    """Start Spark in a thread, which takes seconds, and return the session to be."""
    return command_session.start(lambda: _session(settings))


def _session(settings: Settings) -> SparkSession:
    return session.build(settings, master="local[1]", is_brief=True)


def kafka(settings: Settings) -> Iterator[Line]:
    """Read a record with Spark's Kafka client, which has options of its own."""
    spark = _session(settings)
    # The default timeouts are a minute and more.
    options = {f"kafka.{name}.timeout.ms": "20000" for name in ("request", "default.api")}
    reader = source.with_options(spark.read.format("kafka"), settings.kafka).options(**options)
    try:
        reader.option("subscribe", ",".join(settings.kafka.topics)).load().select("offset").take(1)  # without a shuffle
    except Exception as error:  # Spark's, py4j's and Kafka's own
        raise failure.classify(error) from error
    yield ok("kafka in Spark", f"{settings.kafka.bootstrap} answers Spark's client, too")


def reference(settings: Settings) -> Iterator[Line]:
    if settings.reference is None:
        yield ok("reference", "none in the settings")
        return
    spark = _session(settings)
    table = database.fetch(spark, settings.reference)
    yield ok("reference", f"{table.num_rows} devices, columns {', '.join(table.column_names[1:])}")
    validate(table, settings.reference)
    if filters.places(settings):
        require_columns(table, filters.attributes(spark, settings))
    own = {"device", *settings.columns}
    for view in settings.views:
        columns = [column for column in view.by if column not in own]
        try:
            require_columns(table, columns)
        except ReferenceDataError as error:
            yield failed(f"view {view.name}", error)
        else:
            yield ok(f"view {view.name}", f"by {', '.join(view.by) or 'nothing'}, {view.length}")


def sample_of_fields(settings: Settings) -> Iterator[Line]:
    """Count the newest records of the topics that have each mapped field."""
    spark = _session(settings)
    records = sources.records(spark, settings, sample.newest(settings.kafka, _SAMPLE), sample.READ).coalesce(1)
    counts = inputs.field_counts(records, settings, load_schemas(settings))
    for form in settings.forms:
        yield from _of_fields(form.place, [each for each in counts if each.setting.startswith(f"{form.place}.")])


def _of_fields(place: str, counts: Sequence[FieldCount]) -> Iterator[Line]:
    """Return the lines about the fields of an input."""
    if not counts[0].sampled:
        yield ok(f"{place}: fields", "the topics have no record in which to look for the fields")
    elif not counts[0].decoded:
        text = f"none of the newest {counts[0].sampled} records can be decoded, to look for the fields"
        yield Line(f"{place}: fields", "warn", text, "`tidemark try` says why")
    else:
        for each in counts:
            if each.records:
                yield ok(each.setting, f"{each.records} of the newest {each.decoded} decoded records have {each.path}")
            else:
                text = f"none of the newest {each.decoded} decoded records has {each.path}"
                yield Line(each.setting, "warn", text, "Correct the path, if records should have this field")


def sample_of_filters(settings: Settings) -> Iterator[Line]:
    """Run the filters over the newest records of the topics."""
    predicates = filters.places(settings)
    if not predicates:
        return
    spark = _session(settings)
    attributes = None
    if settings.reference is not None:
        attributes = Index(database.fetch(spark, settings.reference))
    source = sample.newest(settings.kafka, _SAMPLE)
    records = sources.records(spark, settings, source).coalesce(1)
    rows = readings.admit(records, settings, attributes, schemas=load_schemas(settings)).toArrow()
    if not rows.num_rows:
        yield ok("filters", f"Spark accepts {', '.join(predicates)}; the topics have no record to try")
        return
    for form, of_input in zip(settings.forms, _by_input(rows, settings), strict=True):
        if form.where is not None:
            count = of_input.num_rows - _filtered(of_input)
            yield _passing(f"{form.place}.where", count, of_input.num_rows, "records", "they are counted as filtered")
    admitted = rows.filter(pc.is_valid(rows["device"]))
    for view in settings.views:
        if view.where is not None:
            count = pc.sum(admitted[readings.MEETS + view.name]).as_py() or 0
            yield _passing(
                f"views.{view.name}.where", count, admitted.num_rows, "admitted readings", "the view is empty"
            )


def _by_input(rows: pa.Table, settings: Settings) -> Iterator[pa.Table]:
    """Yield the rows of `readings.admit` of each input."""
    topics = pc.shift_right(rows["from_partition"], pa.scalar(readings.PARTITION_BITS, pa.int32()))
    for each in settings.split():
        numbers = [settings.kafka.topics.index(topic) for topic in each.kafka.topics]
        yield rows.filter(pc.is_in(topics, value_set=pa.array(numbers, pa.int32())))


def _filtered(rows: pa.Table) -> int:
    return int(pc.sum(pc.and_(pc.is_null(rows["device"]), pc.is_null(rows["reject"]))).as_py() or 0)


def _passing(place: str, count: int, of: int, what: str, otherwise: str) -> Line:
    text = f"{count} of the newest {of} {what} meet it"
    return ok(place, text) if count or not of else Line(place, "warn", f"{text}: {otherwise}", "Correct the predicate")


def outlets(settings: Settings) -> Iterator[Line]:
    """Try every outlet, and change nothing there."""
    spark = _session(settings)
    for each in settings.outlets:
        try:
            yield ok(f"outlet {each.name}", publication.outlet(each, settings, spark).check())
        except OutletError as error:
            yield failed(f"outlet {each.name}", error)


def plan(settings: Settings) -> Iterator[Line]:
    """Build the query without starting it: Spark analyses every step."""
    spark: SparkSession = _session(settings)
    # The plan is not run, so nothing is looked up.
    folder = snapshot_folder(spark, settings.service.checkpoint) if settings.reference is not None else None
    attributes = in_use(folder, ()) if folder is not None else None
    known = load_schemas(settings)
    records = source.stream(spark, settings.kafka, headers=settings.needs_headers)
    builder.build(records, settings, attributes, 1, schemas=known)
    yield ok("plan", "Spark accepts the query")
    for each in settings.split():
        if each.form.traits.compared_by == "schemas":
            yield from compatibility.in_use(each, known[each.form.place])

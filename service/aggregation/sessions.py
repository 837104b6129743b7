"""Add the stateful operator to the plan, and make its rules from the settings."""

from pyspark.sql import DataFrame

from service.reference.attributes import DEVICE
from service.row_schemas import OUTPUT
from service.settings import Settings
from state.calendar import Calendar
from state.finals import Finals
from state.processor import BucketProcessor
from state.rollups import Rollup, levels
from state.rules import Rules
from state.watermark import Delays
from state.window_columns import columns_of


def rules(settings: Settings) -> Rules:
    """Return the settings of sessions, and the views without windows, as the rules of the state."""
    sessions = settings.sessions
    return Rules(
        gap_ms=sessions.gap_ms,
        max_duration_ms=sessions.max_duration_ms,
        retain_ms=sessions.retain_ms,
        measures=settings.measures,
        endless=frozenset(settings.endless),
        by_measure=sessions.measure_status,
        has_line=sessions.status_delay_ms is not None,
        has_transitions=has_states(settings),
        by_device=frozenset(view.name for view in settings.views if view.is_endless and DEVICE in view.by),
        update_every={view.name: view.update_every_ms for view in settings.views},
        devices_every_ms=sessions.update_every_ms,
        leads=settings.leads,
        fills=settings.fills,
        rollups=_rollups(settings),
        trails=tuple(measure for measure, ordered in settings.session_statistics.items() if ordered),
    )


def _rollups(settings: Settings) -> tuple[tuple[Rollup, ...], ...]:
    found = []
    for view in settings.views:
        if view.reads is not None:
            calendar = view.calendar if isinstance(view.calendar, Calendar) else None  # none has zones by key
            measures, columns = settings.view_measures(view), columns_of(view.statistics)
            found.append(Rollup(view.name, view.reads, measures, columns, view.window_ms, calendar))
    return levels(found)


def has_states(settings: Settings) -> bool:
    """Return whether an outlet takes changes of statuses."""
    return any(outlet.content == "states" for outlet in settings.outlets)


def longest_gap_ms(settings: Settings) -> int:
    """Return the longest session gap: the last reading of an open session is less far behind the watermark."""
    reference, sessions = settings.reference, settings.sessions
    has_own_gaps = reference is not None and reference.session_gap is not None
    return sessions.max_duration_ms if has_own_gaps else sessions.gap_ms


def delays(settings: Settings) -> Delays:
    """Return the settings of the watermark."""
    admission = settings.admission
    return Delays(admission.watermark_delay_ms, admission.max_delay_ms, settings.sessions.status_delay_ms)


def finals(settings: Settings) -> Finals | None:
    """Return the finals that the outlets ask for; None without an outlet."""
    if not settings.outlets:
        return None
    views = frozenset(view for outlet in settings.outlets for view in settings.outlet_views(outlet))
    return Finals(views, any(outlet.sessions for outlet in settings.outlets))


def advance(folded: DataFrame, settings: Settings) -> DataFrame:
    """Apply the stateful operator to rows of row_schemas.FOLDED; returns rows of row_schemas.OUTPUT."""
    return (
        folded.select("bucket", "kind", "payload")
        .groupBy("bucket")
        .transformWithStateInPandas(
            statefulProcessor=BucketProcessor(
                rules(settings), delays(settings), finals(settings), settings.service.checkpoint
            ),
            outputStructType=OUTPUT,
            outputMode="Update",
            timeMode="None",
        )
    )

"""`tidemark rejects list|show|replay`: rejects by reason, device, time or coordinates.

`list` and `show` need no Spark, and no service need run. `replay` runs admission in a local Spark session, unless it is forced.
"""

import base64
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path
from typing import Any

from service import clock, settings
from service.admission import guids
from service.admission.arrays import NO_INDEX
from service.admission.formats.format import Dissected
from service.commands import dissect, replay
from service.commands.explain import explain
from service.commands.metadata import Metadata
from service.errors import SchemaError, SettingsError
from service.kafka import matching
from service.kafka.scan import Watch
from service.printing import aligned, document, printable, say
from service.rejects import marks, reject_log
from service.rejects.marks import Mark
from service.rejects.reject_log import Coordinates, Reject
from service.units import format_time, parse_time_ms

_log = logging.getLogger(__name__)
UNTOUCHED = "open"
UNASKED = 10_000
"""More rejects are replayed only with --yes."""
_WIDEST = 120
"""Characters of a cell in a table; `show`, and --json, have all of them."""
WIDEST_DETAIL = 240
LINES = 50
"""The number of rejects in a table without -n. --json without -n prints all of them."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The rejects that match every field that is set. `watch` gets how many records of the rejects topics are read."""

    config: Path
    at: Sequence[str] | None = None
    reason: Sequence[str] | None = None
    device: str | None = None
    since: str | None = None
    until: str | None = None
    state: str | None = None
    watch: Watch | None = None


def span(
    since: str | None, until: str | None, names: tuple[str, str] = ("--since", "--until")
) -> tuple[int | None, int | None]:
    """Return two options in ms; raises SettingsError."""
    since_ms, until_ms = map(_time_ms, names, (since, until))
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        what = f"{names[0]} {since} is not before {names[1]} {until}"
        raise SettingsError(what, remedy=f"Give the earlier time, or the larger duration, as {names[0]}")
    return since_ms, until_ms


def _time_ms(option: str, text: str | None) -> int | None:
    try:
        return None if text is None else parse_time_ms(text, clock.now_ms())
    except ValueError as error:
        raise SettingsError(f"{option}: {text!r} {error}") from error


@dataclass(frozen=True)
class _Entry:
    """A reject that is decoded when its fields are asked for: of many, a list shows the newest."""

    reject: Reject
    mark: Mark | None
    dissector: dissect.Dissector

    @property
    def state(self) -> str:
        return UNTOUCHED if self.mark is None else self.mark.state

    @cached_property
    def seen(self) -> Dissected:
        return self.dissector(self.reject.place.topic, self.reject.value, self.reject.headers)

    @cached_property
    def device(self) -> str | None:
        return self.dissector.device(self.seen, Metadata.of(self.reject))

    def document(self, loaded: settings.Settings) -> dict[str, Any]:
        """For machines: bytes are base 64."""
        reject = self.reject
        return {
            "topic": reject.place.topic,
            "partition": reject.place.partition,
            "offset": reject.place.offset,
            **({} if reject.place.index == NO_INDEX else {"index": reject.place.index}),
            "reason": reject.reason,
            "detail": self.detail(loaded),
            "state": self.state,
            "device": self.device,
            "broker_ms": reject.broker_ms,
            "epoch": reject.epoch,
            "batch": reject.batch,
            "bytes": len(reject.value) if reject.value is not None else reject.omitted_bytes,
        }

    def detail(self, loaded: settings.Settings) -> str:
        """Return why the record was rejected: field, value, and what was expected."""
        return self.reject.detail if self.seen is dissect.UNREAD else explain(self.reject, self.seen, loaded)


def _selected(
    selection: Selection, loaded: settings.Settings, lacking: Callable[[SchemaError], object] | None = None
) -> Iterator[_Entry]:
    """Yield the rejects of the selection; `lacking` as of a Dissector."""
    since_ms, until_ms = span(selection.since, selection.until)
    places = {place for text in selection.at or () for place in Coordinates.parse(text)}
    known, dissector = marks.read(loaded.kafka), dissect.Dissector(loaded, lacking)
    left = set(places)
    for reject in reject_log.read(loaded.kafka, since_ms, until_ms, selection.watch):
        if (places and reject.place not in places) or (selection.reason and reject.reason not in selection.reason):
            continue
        left.discard(reject.place)
        entry = _Entry(reject, known.get(reject.place), dissector)
        if selection.state and entry.state != selection.state:
            continue
        if selection.device is None or entry.device == selection.device:
            yield entry
        if places and not left:
            return


def _listed(selection: Selection, loaded: settings.Settings) -> Iterator[_Entry]:
    """Yield the rejects of the selection, also while a schema registry is away."""
    return _selected(
        selection, loaded, lambda error: _log.warning("%s. Records are shown without being decoded", error)
    )


def list_(selection: Selection, lines: int | None, *, as_json: bool) -> int:
    """Print the newest `lines` of the chosen rejects, newest last, and how many there are; with `as_json`, an object a line.

    Without `lines`, a table has LINES of them, and JSON has all.
    """
    loaded = matching.resolved(settings.load(selection.config))
    if as_json and lines is None:
        # Of all rejects only the lines are kept, without the bytes of the records.
        every = ((each.reject.broker_ms, each.reject.place, _line(each, loaded)) for each in _listed(selection, loaded))
        for *_, line in sorted(every):
            say(line)
        return 0
    counts, most = Counter[tuple[str, str]](), LINES if lines is None else lines
    # A heap, because the rejects come partition by partition; each place comes once.
    newest: list[tuple[int, Coordinates, _Entry]] = []
    for entry in _listed(selection, loaded):
        reject = entry.reject
        counts[reject.reason, entry.state] += 1
        heappush(newest, (reject.broker_ms, reject.place, entry))
        if len(newest) > most:
            heappop(newest)
    entries = [heappop(newest)[2] for _ in range(len(newest))]
    if as_json:
        for entry in entries:
            say(_line(entry, loaded))
        return 0
    rows = [_row(entry, loaded) for entry in entries]
    head = ["record", "broker time", "reason", "state", "device", "detail"]
    for line in aligned([head, *rows]) if rows else []:
        say(line)
    for line in _summary(counts):
        say(line)
    return 0


def _line(entry: _Entry, loaded: settings.Settings) -> str:
    return document(entry.document(loaded))


def _row(entry: _Entry, loaded: settings.Settings) -> list[str]:
    reject = entry.reject
    return [
        str(reject.place),
        format_time(reject.broker_ms),
        printable(reject.reason),
        entry.state,
        printable(_shortened(entry.device or "-")),
        printable(_shortened(entry.detail(loaded), WIDEST_DETAIL)),
    ]


def _shortened(text: str, most: int = _WIDEST) -> str:
    """Cut a cell, because one device that sends ids of 64 KiB would make every line of the table as wide."""
    return text if len(text) <= most else f"{text[:most]}..."


def _summary(counts: Mapping[tuple[str, str], int]) -> Iterator[str]:
    by_reason: Counter[str] = Counter()
    for (reason, _), many in counts.items():
        by_reason[reason] += many
    yield f"{by_reason.total()} rejects"
    for reason, many in by_reason.most_common():
        states = ", ".join(f"{n} {state}" for (r, state), n in sorted(counts.items()) if r == reason)
        yield f"  {many} {reason}: {states}"


def show(selection: Selection, *, as_json: bool) -> int:
    """Print everything that is known of the chosen rejects; 1 when there is none."""
    loaded = matching.resolved(settings.load(selection.config))
    forms, shown = loaded.inputs_by_topic, 0
    for listed in _listed(selection, loaded):
        [complete] = reject_log.complete(loaded.kafka, [listed.reject], forms)
        entry = listed if complete is None else replace(listed, reject=complete)
        shown += 1
        for line in [document(_all(entry, loaded))] if as_json else _shown(entry, loaded):
            say(line)
    if not shown and not as_json:
        say("no reject matches")
    return 0 if shown else 1


def _all(entry: _Entry, loaded: settings.Settings) -> dict[str, Any]:
    reject = entry.reject
    encoded = {
        name: None if value is None else base64.b64encode(value).decode()
        for name, value in (("key", reject.key), ("value", reject.value))
    }
    headers = [[name, None if text is None else base64.b64encode(text).decode()] for name, text in reject.headers]
    # JSON has neither NaN nor infinities: they become text.
    decoded = json.loads(json.dumps(entry.seen.fields, default=str), parse_constant=str)
    more = {"decoded": decoded, "stopped_at": entry.seen.stop, "why": entry.seen.why, "headers": headers}
    return {**entry.document(loaded), **encoded, **more}


def _shown(entry: _Entry, loaded: settings.Settings) -> Iterator[str]:
    reject, seen, mark = entry.reject, entry.seen, entry.mark
    yield f"{reject.place}  {reject.reason}: {entry.detail(loaded)}"
    yield f"  broker time {format_time(reject.broker_ms)}, rejected in batch {reject.batch} of epoch {reject.epoch}"
    since = "" if mark is None else f", since {format_time(int(mark.details.get('at_ms', 0)))}"
    if mark is not None and "as" in mark.details:
        since += ", as {}[{}]@{}".format(reject.place.topic, *mark.details["as"])
    yield f"  {entry.state}{since}"
    yield f"  key {_bytes(reject.key)}"
    for name, text in reject.headers:
        yield f"  header {name}: {_bytes(text)}"
    if seen.schema is not None:
        yield f"  schema {guids.shown(seen.schema)}"
    for name, value in seen.fields.items():
        place = "  bytes {}-{}".format(*seen.spans[name]) if name in seen.spans else ""
        yield f"  {name} = {value!r}{place}"
    if seen.stop is not None:
        yield f"  decoding stops at byte {seen.stop}: {seen.why}"
    if reject.value is None:
        omitted = reject.omitted_bytes
        yield "  no value" if omitted is None else f"  {omitted} bytes, in no topic any more"
    else:
        yield f"  {len(reject.value)} bytes"
        limit = loaded.admission.max_bytes
        form = loaded.form_of(reject.place.topic)
        span = dissect.offending(seen, reject.reason, reject.detail, form, limit, len(reject.value))
        yield from dissect.hexdump(reject.value, span if seen is not dissect.UNREAD else None)
    yield ""


def _bytes(value: bytes | None) -> str:
    return "none" if value is None else repr(value)[1:]


def _count(selection: Selection, loaded: settings.Settings, most: int) -> int:
    """How many rejects are chosen; `most` where there are more."""
    return sum(1 for _ in islice(_selected(selection, loaded), most))


def replay_(
    selection: Selection,
    assign: Sequence[str],
    value_file: Path | None,
    *,
    dry: bool,
    rate: int | None,
    yes: bool,
    force: bool,
) -> int:
    """Send the chosen rejects again. Return 0, also when some were not sent: each is named with the reason."""
    loaded = matching.resolved(settings.load(selection.config))
    if not (selection.at or selection.reason or selection.device or selection.since):
        msg = "tidemark rejects replay: which ones?"
        raise SettingsError(msg, remedy="Name places, or a --reason, a --device or a time --since which")
    try:
        value = None if value_file is None else value_file.read_bytes()
    except OSError as error:
        raise SettingsError(f"{value_file}: cannot be read ({error.strerror})") from error
    mend = replay.Mend(replay.assignments(assign), value)
    if value is not None:
        many = _count(selection, loaded, 2)
        if many != 1 or assign:
            msg = f"--value replaces all bytes of one reject: {'several' if many else 'none'} are chosen, or --set is given too"
            raise SettingsError(msg, remedy="Name one place, and no --set")
    if not (dry or yes) and _count(selection, loaded, UNASKED + 1) > UNASKED:
        msg = f"More than {UNASKED} rejects are chosen"
        raise SettingsError(msg, remedy="Look at them with --dry-run, choose fewer, or add --yes, and --rate")
    chosen = (entry.reject for entry in _selected(selection, loaded))
    counts = replay.replay(loaded, chosen, mend, say, dry=dry, force=force, rate=rate)
    sent = counts.pop("sent", 0)
    say(f"{sent} {'would be sent' if dry else 'sent'}, {counts.total()} not")
    for why, many in counts.most_common():
        say(f"  {many} {why}")
    if any(why.startswith("would be rejected again") for why in counts):
        say("Not sent and not marked. Add --force to send also what would be rejected again")
    return 0

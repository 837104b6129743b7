"""`tidemark init`: read a sample of the topics, propose settings, show what was seen, and write a short settings file."""

import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from service import clock
from service.commands import places, records, tables
from service.commands.places import Request
from service.errors import SchemaError, SettingsError, SetupError
from service.printing import command_line
from service.proposal import proposal, settings_text, times
from service.proposal.envelopes import envelope_of
from service.proposal.proposal import Proposal
from service.proposal.settings_text import Places
from service.settings import Admission, Kafka, parse
from service.units import format_duration

if TYPE_CHECKING:
    from rich.console import Console

_LEFT_OUT = 8
"""Fields that are named for one reason; the others are counted."""


def init(request: Request, confirm: Callable[[str], bool]) -> None:
    """Propose settings and write them if `confirm` agrees.

    Raises SettingsError when the file exists, or when the sample leaves a setting open: then the file is written and names it.
    Raises SourceError when Kafka does not answer or has no record, SchemaError when no record can be decoded, and
    ReferenceDataError when the reference cannot be read.
    """
    if request.out.exists():
        raise _exists(request.out)
    kafka = request.draft().kafka
    messages = places.newest(kafka, request)
    form = places.form(messages, request)
    decoded = records.decode(messages, form.input, form.schemas)
    if not decoded.sample:
        raise _undecodable(kafka, decoded)
    reference = places.reference(request)
    made = proposal.propose(decoded.sample, reference, form.types if form.is_avro else None)
    made.doubts |= form.doubts
    if reference is not None and made.reference_key is not None:
        places.require_columns(request.reference, made.reference_key, list(reference.columns))
    console = tables.console()
    _show(console, kafka, decoded, made)
    sections = Places(
        request.kafka, request.redis, form.input, request.service, form.registry, request.reference, request.metrics
    )
    written = settings_text.text(made, sections, _head(kafka, decoded))
    _require_valid(written, made, request.out)
    if not confirm(f"Write {request.out}?"):
        tables.line(console, "Nothing is written.")
        return
    _write(request.out, written)
    if made.open:
        what = f"{request.out} is written, but {', '.join(made.open)} could not be told from the sample"
        raise SettingsError(what, remedy="Give each at its TO DO in the file, then run `tidemark check`")
    tables.line(console, f"{request.out} is written. Next:")
    for words in ("check", "run"):
        tables.line(console, f"  {command_line(words, request.out)}")


def _undecodable(kafka: Kafka, decoded: records.Decoded) -> SchemaError:
    reasons = ", ".join(f"{count} {why}" for why, count in decoded.refused.most_common())
    what = f"{', '.join(kafka.topics)}: no record of {decoded.refused.total()} can be decoded: {reasons}"
    return SchemaError(
        what, remedy="Tidemark reads JSON objects, and Avro, JSON and Protobuf with Confluent's schema ids"
    )


def _require_valid(text: str, made: Proposal, out: Path) -> None:
    """Raise what loading the file would raise, unless settings are open."""
    document = tomllib.loads(text)
    if not made.open:
        parse(document, where=str(out), folder=out.absolute().parent)


def _head(kafka: Kafka, decoded: records.Decoded) -> list[str]:
    day = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).date().isoformat()
    return [
        f"Proposed by `tidemark init` on {day}, from {len(decoded.sample)} records of {', '.join(kafka.topics)}.",
        *([] if (name := envelope_of(decoded.sample)) is None else [f"The records look like those of {name}."]),
        "All settings and their defaults: deploy/tidemark.example.toml",
    ]


def _write(out: Path, text: str) -> None:
    """Write a new file. Raises SettingsError if it exists by now, SetupError if it cannot be written."""
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise _exists(out) from error
    except OSError as error:
        what = f"{out} cannot be written ({error.strerror})"
        raise SetupError(what, remedy="Name another file with --config") from error


def _exists(out: Path) -> SettingsError:
    what = f"{out} exists, and init replaces no file"
    return SettingsError(what, remedy="Name another file with --config, or remove this one")


def _show(console: "Console", kafka: Kafka, decoded: records.Decoded, made: Proposal) -> None:
    """Print what was seen, what is proposed, and what the sample cannot tell."""
    title = f"{len(decoded.sample)} records of {', '.join(kafka.topics)}"
    tables.table(console, title, ("setting", "proposal", "seen"), _rows(made))
    if (name := envelope_of(decoded.sample)) is not None:
        tables.line(console, f"The records look like those of {name}.")
    for why, count in decoded.refused.most_common():
        tables.line(console, f"{count} records were not decoded: {why}")
    if made.columns.more:
        tables.line(console, f"{made.columns.more} more fields were not looked at")
    if made.left_out:
        tables.line(console, "Numbers that are no measures:")
    for why in dict.fromkeys(made.left_out.values()):
        paths = [path for path, reason in made.left_out.items() if reason == why]
        more = f" and {len(paths) - _LEFT_OUT} more" if len(paths) > _LEFT_OUT else ""
        tables.line(console, f"  {', '.join(paths[:_LEFT_OUT])}{more}: {why}")
    tables.line(console, f"Windows are final {proposal.final_after(made)}; later readings are rejected as late.")
    unsure = list(proposal.lines(made))
    if unsure:
        tables.line(console, "What the sample cannot tell:")
        for setting, why in unsure:
            tables.line(console, f"  {setting}: {why}", "yellow")


def _rows(made: Proposal) -> list[tuple[str, str, str]]:
    rows = []
    device, event = made.device, made.clock
    if device is not None:
        why = f"{device.devices} devices" + (f", {device.why}" if device.why else "")
        rows.append(("input.device_id", _marked(made, "input.device_id", device.path), why))
    if event is not None:
        form = f"{event.path} ({event.pattern or event.unit})"
        rows.append(("input.event_time", _marked(made, "input.event_time", form), times.lag(event)))
    for each in made.measures:
        share = "" if each.share == 1 else f", in {each.share:.1%} of the records"
        shown = each.path if each.path == each.name else f"{each.name} = {each.path}"
        shown += f" where {each.where}" if each.where is not None else ""
        rows.append(
            ("input.measures", _marked(made, "input.measures", shown), f"{each.low:.6g} to {each.high:.6g}{share}")
        )
    delay = proposal.duration(made.max_delay_ms) or f"{format_duration(Admission().max_delay_ms)}, the default"
    rows.append(("admission.max_delay", _marked(made, "admission.max_delay", delay), proposal.delays(made)))
    if ahead := proposal.duration(made.max_ahead_ms):
        rows.append(("admission.max_ahead", _marked(made, "admission.max_ahead", ahead), ""))
    gap = proposal.duration(made.gap_ms) or "5 m, the default"
    rows.append(("sessions.gap", _marked(made, "sessions.gap", gap), proposal.pace(made.rhythm)))
    views = ", ".join(("device", *made.categories))
    others = f"; also with few values: {', '.join(made.more_categories)}" if made.more_categories else ""
    rows.append(("views", views, f"windows of {proposal.duration(made.window_ms)}{others}"))
    return rows


def _marked(made: Proposal, setting: str, shown: str) -> str:
    return f"{shown}  (not sure)" if setting in made.doubts else shown

"""`tidemark init`: read a sample of the topics, propose settings, show what was seen, and write a short settings file."""

import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from service import clock
from service.commands import places, records
from service.commands.places import Request
from service.errors import SchemaError, SettingsError, SetupError
from service.printing import command_line, say
from service.proposal import proposal, settings_text
from service.proposal.envelopes import envelope_of
from service.proposal.proposal import Proposal
from service.proposal.settings_text import Places
from service.settings import Kafka, parse

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
    sections = Places(
        request.kafka, request.redis, form.input, request.service, form.registry, request.reference, request.metrics
    )
    written = settings_text.text(made, sections, _head(kafka, decoded))
    _require_valid(written, made, request.out)
    _show(decoded, made, written)
    if not confirm(f"Write {request.out}?"):
        say("Nothing is written.")
        return
    _write(request.out, written)
    if made.open:
        what = f"{request.out} is written, but {', '.join(made.open)} could not be told from the sample"
        raise SettingsError(what, remedy="Give each at its TO DO in the file, then run `tidemark check`")
    say(f"{request.out} is written. Next:")
    for words in ("check", "run"):
        say(f"  {command_line(words, request.out)}")


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


def _show(decoded: records.Decoded, made: Proposal, written: str) -> None:
    """Print the file that is proposed, what was seen, and what the sample cannot tell."""
    for line in written.splitlines():
        say(line)
    say("")
    for why, count in decoded.refused.most_common():
        say(f"{count} records were not decoded: {why}")
    if made.columns.more:
        say(f"{made.columns.more} more fields were not looked at")
    if made.left_out:
        say("Numbers that are no measures:")
    for why in dict.fromkeys(made.left_out.values()):
        paths = [path for path, reason in made.left_out.items() if reason == why]
        more = f" and {len(paths) - _LEFT_OUT} more" if len(paths) > _LEFT_OUT else ""
        say(f"  {', '.join(paths[:_LEFT_OUT])}{more}: {why}")
    if made.more_categories:
        say(f"Also with few values: {', '.join(made.more_categories)}")
    for seen in filter(None, (proposal.pace(made.rhythm), proposal.delays(made))):
        say(f"{seen[0].upper()}{seen[1:]}.")
    say(f"Windows are final {proposal.final_after(made)}; later readings are rejected as late.")
    if settled := proposal.settled_after(made):
        say(f"{settled}.")
    unsure = list(proposal.lines(made))
    if unsure:
        say("What the sample cannot tell:")
        for setting, why in unsure:
            say(f"  {setting}: {why}")

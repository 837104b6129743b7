"""The rejects topics against the oracle: each reject once, for its reason, with its bytes; and no record unaccounted for."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from load.judge.oracle import Coordinate, Expected, Offsets, Record, digest
from load.judge.verdict import Verdict

_HEADER = "tidemark."


def reject_headers(record: Record) -> dict[str, bytes]:
    """The service's headers of a reject. The record's own headers come first, and may have any name."""
    begin = max((at for at, (name, _) in enumerate(record.headers) if name == f"{_HEADER}reason"), default=0)
    return {name.removeprefix(_HEADER): value or b"" for name, value in record.headers[begin:]}


def place_of(topic: str, headers: Mapping[str, bytes]) -> Coordinate:
    """The coordinate of a reject by its headers. Raises KeyError and ValueError."""
    partition, offset = int(headers["partition"]), int(headers["offset"])
    return (topic, partition, offset, int(headers["index"])) if "index" in headers else (topic, partition, offset)


def check_rejects(expected: Expected, stored: Iterable[Record], verdict: Verdict) -> Counter[tuple[str, int]]:
    """All records of the rejects topics; returns how many different ones there are per topic and partition."""
    seen: set[Coordinate] = set()
    count: Counter[tuple[str, int]] = Counter()
    for record in stored:
        where = f"{record.topic}[{record.partition}]@{record.offset}"
        headers = reject_headers(record)
        try:
            topic, reason = (headers[name].decode() for name in ("topic", "reason"))
            place = place_of(topic, headers)
        except (KeyError, ValueError) as problem:
            sentence = f"{where}: its headers {headers} do not say where it comes from ({problem!r})"
            verdict.add("reject.headers", sentence)
            continue
        partition = expected.partitions.get(place[:2])
        if place in seen:
            verdict.duplicates += 1
        elif partition is not None and place[2] >= partition.end:
            verdict.ahead += 1
            continue
        else:
            seen.add(place)
            count[place[:2]] += 1
        right = expected.rejects.get(place)
        if right is None:
            verdict.add("reject.extra", f"{_shown(place)}: is rejected as {reason!r} and should not be ({where})")
        elif reason != right:
            verdict.add("reject.reason", f"{_shown(place)}: expected {right!r}, is {reason!r} ({where})")
        elif not _same_value(expected, place, record, headers):
            sentence = f"{_shown(place)}: {where} does not hold the bytes of the record"
            verdict.add("reject.value", f"{sentence}: expected {expected.values[place]}, is {digest(record.value)}")
        elif "omitted_bytes" in headers:
            verdict.omitted += 1
    for place in sorted(expected.rejects.keys() - seen):
        verdict.add("reject.missing", f"{_shown(place)}: expected as {expected.rejects[place]!r}")
    verdict.compared["rejects"] = len(expected.rejects)
    return count


def check_partitions(
    expected: Expected,
    stored: Mapping[tuple[str, int], int],
    ends: Offsets,
    verdict: Verdict,
    lost: Offsets | None = None,
) -> None:
    """Per partition: offsets up to progress's = admitted readings + stored rejects + lost records.

    Readings of arrays but the first of each are `further` ones, without an offset of their own.
    """
    for (topic, number), counts in sorted(expected.partitions.items()):
        name = f"{topic}[{number}]"
        verdict.partitions[name] = asdict(counts)
        end, rejects = ends.get(topic, {}).get(number, 0), stored.get((topic, number), 0)
        # Nothing was there to be consumed before the oldest record.
        consumed = max(0, end - counts.start - (lost or {}).get(topic, {}).get(number, 0))
        accounted = counts.admitted + rejects + counts.filtered - counts.further
        if consumed != accounted:
            text = f"{name}: offsets {counts.start} to {end} consumed, {counts.admitted} admitted + {rejects} rejects"
            text += f" + {counts.filtered} filtered - {counts.further} further"
            verdict.add("partition.sum", f"{text} = {accounted}, not {consumed}")
    for topic, numbers in ends.items():
        for number in numbers:
            if (topic, number) not in expected.partitions:
                verdict.add("partition.unknown", f"{topic}[{number}]: progress names it, the topic does not have it")


def _same_value(expected: Expected, place: Coordinate, record: Record, headers: Mapping[str, bytes]) -> bool:
    """Whether a reject holds the record's bytes, or says how many it leaves out for being too large."""
    right = expected.values[place]
    if "omitted_bytes" in headers and right is not None:
        omitted = int(headers["omitted_bytes"])
        return record.value is None and (omitted == right[0] or (record.key is None and omitted > right[0]))
    return digest(record.value) == right


def _shown(place: Coordinate) -> str:
    return f"{place[0]}[{place[1]}]@{'#'.join(map(str, place[2:]))}"

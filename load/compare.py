"""The comparer: everything in Redis and in the rejects topics against the oracle, difference by difference.

It wants a service at rest: progress is read first, and what Redis holds must be exactly what the records up to
progress's offsets give under progress's watermark. It takes for granted that no key has expired: views and sessions are
retained for longer than the run took. Rejects may be there twice (they are delivered at least once) and ahead of
progress (a batch that was not committed), both of which are counted.

    python -m load.compare --config tidemark.toml [--json FILE]        status 1 when anything differs
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import redis

from load import published
from load.differences import Hash, Verdict, check_hashes, check_indexes
from load.oracle import Coordinate, Expected, Offsets, Record, digest, expected, records
from load.rules import Reference, Rules, read_rules

__all__ = ["Verdict", "check_partitions", "check_rejects", "compare", "main"]

_HEADER = "tidemark."


def compare(
    settings_path: Path | str,
    *,
    redis_url: str | None = None,
    bootstrap: str | None = None,
    starts: Offsets | None = None,
    reference: Reference | None = None,
    archive: Iterable[Record] = (),
    lost: Offsets | None = None,
    may_be_refused: bool = False,
) -> Verdict:
    """Read Redis, the rejects and the topics, and compare; `starts` to `archive` are as for `oracle.expected`.

    `lost` says of how many records each partition was robbed before anybody could read them. Readings that the service has
    rejected for being behind the watermark, or of too many devices, are differences, unless they `may_be_refused`: then they are
    counted.
    Raises redis.RedisError and KafkaException when one of them cannot be read.
    """
    rules = read_rules(Path(settings_path))
    verdict = Verdict()
    options: dict[str, Any] = {"decode_responses": True, "encoding_errors": "surrogateescape"}
    with redis.Redis.from_url(redis_url or rules.redis_url, **options) as client:
        answer: Any = client.hgetall(f"{rules.prefix}:progress")
        progress: Hash = answer
        if not {"epoch", "batch", "watermark", "final", "offsets"} <= progress.keys():
            verdict.add("progress.missing", f"{rules.prefix}:progress has the fields {sorted(progress)}")
            return verdict
        ends = {t: {int(p): int(o) for p, o in ps.items()} for t, ps in json.loads(progress["offsets"]).items()}
        verdict.progress = {name: int(progress[name]) for name in ("epoch", "batch", "watermark")}
        is_silent = (progress.get("idle_epoch"), progress.get("idle_batch")) == (progress["epoch"], progress["batch"])
        verdict.progress["idle"] = int(progress["idle"]) if is_silent else -1
        refused = _refused(rules, bootstrap) if may_be_refused else {}
        verdict.refused = len(refused)
        wanted = expected(
            settings_path,
            bootstrap,
            watermark_ms=verdict.progress["watermark"],
            idle_ms=verdict.progress["idle"],
            ends=ends,
            starts=starts,
            reference=reference,
            archive=archive,
            corrected=corrected(rules, bootstrap),
            refused=refused,
        )
        check_hashes(wanted, rules.prefix, published.hashes(client, rules.prefix), verdict)
        names = [f"{rules.prefix}:keys:{view.name}" for view in rules.views]
        check_indexes(wanted, rules.prefix, {name: _sorted_set(client, name) for name in names}, verdict)
    topics = sorted({rules.rejects.format(topic=topic) for topic in rules.topics})
    stored = check_rejects(wanted, records(rules, topics, bootstrap), verdict)
    check_partitions(wanted, stored, ends, verdict, lost)
    return verdict


def corrected(rules: Rules, bootstrap: str | None = None) -> set[Coordinate]:
    """The late readings that the service has added to the values, by the marks in `<rejects topic>.applied`."""
    coordinates: set[Coordinate] = set()
    for topic in rules.topics:
        for record in records(rules, [f"{rules.rejects.format(topic=topic)}.applied"], bootstrap):
            partition, _, offset = (record.key or b"").decode().partition("/")
            if offset.isdecimal() and json.loads(record.value or b"{}").get("state") == "corrected":
                coordinates.add((topic, int(partition), int(offset)))
    return coordinates


def _refused(rules: Rules, bootstrap: str | None) -> dict[Coordinate, str]:
    """The readings that were rejected for a reason only the service can know, with that reason."""
    places: dict[Coordinate, str] = {}
    for record in records(rules, sorted({rules.rejects.format(topic=topic) for topic in rules.topics}), bootstrap):
        headers = _reject_headers(record)
        reason = headers.get("reason", b"").decode()
        is_behind = reason == "late" and b"is behind the watermark" in headers.get("detail", b"")
        if is_behind or reason == "too_many_devices":
            places[headers["topic"].decode(), int(headers["partition"]), int(headers["offset"])] = reason
    return places


def _reject_headers(record: Record) -> dict[str, bytes]:
    """The service's headers of a reject. The record's own headers come first, and may have any name."""
    begin = max((at for at, (name, _) in enumerate(record.headers) if name == f"{_HEADER}reason"), default=0)
    return {name.removeprefix(_HEADER): value or b"" for name, value in record.headers[begin:]}


def check_rejects(wanted: Expected, stored: Iterable[Record], verdict: Verdict) -> Counter[tuple[str, int]]:
    """All records of the rejects topics; returns how many different ones there are per topic and partition."""
    seen: set[Coordinate] = set()
    count: Counter[tuple[str, int]] = Counter()
    for record in stored:
        where = f"{record.topic}[{record.partition}]@{record.offset}"
        headers = _reject_headers(record)
        try:
            topic, reason = (headers[name].decode() for name in ("topic", "reason"))
            place = (topic, int(headers["partition"]), int(headers["offset"]))
        except (KeyError, ValueError) as problem:
            sentence = f"{where}: its headers {headers} do not say where it comes from ({problem!r})"
            verdict.add("reject.headers", sentence)
            continue
        partition = wanted.partitions.get(place[:2])
        if place in seen:
            verdict.duplicates += 1
        elif partition is not None and place[2] >= partition.end:
            verdict.ahead += 1
            continue
        else:
            seen.add(place)
            count[place[:2]] += 1
        right = wanted.rejects.get(place)
        if right is None:
            verdict.add("reject.extra", f"{_shown(place)}: is rejected as {reason!r} and should not be ({where})")
        elif reason != right:
            verdict.add("reject.reason", f"{_shown(place)}: expected {right!r}, is {reason!r} ({where})")
        elif not _same_value(wanted, place, record, headers):
            sentence = f"{_shown(place)}: {where} does not hold the bytes of the record"
            verdict.add("reject.value", f"{sentence}: expected {wanted.values[place]}, is {digest(record.value)}")
        elif "omitted_bytes" in headers:
            verdict.omitted += 1
    for place in sorted(wanted.rejects.keys() - seen):
        verdict.add("reject.missing", f"{_shown(place)}: expected as {wanted.rejects[place]!r}")
    verdict.compared["rejects"] = len(wanted.rejects)
    return count


def check_partitions(
    wanted: Expected,
    stored: Mapping[tuple[str, int], int],
    ends: Offsets,
    verdict: Verdict,
    lost: Offsets | None = None,
) -> None:
    """Per partition: offsets up to progress's = admitted readings + stored rejects + lost records."""
    for (topic, number), counts in sorted(wanted.partitions.items()):
        name = f"{topic}[{number}]"
        verdict.partitions[name] = asdict(counts)
        end, rejects = ends.get(topic, {}).get(number, 0), stored.get((topic, number), 0)
        # Nothing was there to be consumed before the oldest record.
        consumed = max(0, end - counts.start - (lost or {}).get(topic, {}).get(number, 0))
        if consumed != counts.admitted + rejects:
            text = f"{name}: offsets {counts.start} to {end} consumed, {counts.admitted} admitted + {rejects} rejects"
            verdict.add("partition.sum", f"{text} = {counts.admitted + rejects}, not {consumed}")
    for topic, numbers in ends.items():
        for number in numbers:
            if (topic, number) not in wanted.partitions:
                verdict.add("partition.unknown", f"{topic}[{number}]: progress names it, the topic does not have it")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m load.compare", description="Compare Redis with the oracle.")
    parser.add_argument("--config", type=Path, required=True, help="the service's settings file")
    parser.add_argument("--json", type=Path, help="write the verdict there")
    options = parser.parse_args(arguments)
    verdict = compare(options.config)
    if options.json:
        options.json.write_text(verdict.to_json() + "\n", encoding="utf-8")
    compared = ", ".join(f"{count} {name}" for name, count in verdict.compared.items()) or "nothing"
    print(f"compared {compared}: {verdict.mismatches} differences")
    print("".join(f"  {sentence}\n" for sentence in verdict.examples), end="")
    return 0 if verdict.ok else 1


def _same_value(wanted: Expected, place: Coordinate, record: Record, headers: Mapping[str, bytes]) -> bool:
    """Whether a reject holds the record's bytes, or says how many it leaves out for being too large."""
    right = wanted.values[place]
    if "omitted_bytes" in headers and right is not None:
        omitted = int(headers["omitted_bytes"])
        return record.value is None and (omitted == right[0] or (record.key is None and omitted > right[0]))
    return digest(record.value) == right


def _shown(place: Coordinate) -> str:
    return f"{place[0]}[{place[1]}]@{place[2]}"


def _sorted_set(client: "redis.Redis", name: str) -> Mapping[str, float]:
    answer: Any = client.zrange(name, 0, -1, withscores=True)
    return dict(answer)


if __name__ == "__main__":
    sys.exit(main())

"""The comparer: everything in Redis and in the rejects topics against the oracle, difference by difference.

It wants a service at rest: progress is read first, and what Redis holds must be exactly what the records up to
progress's offsets give under progress's watermark. All shards must have the same progress. Whether a key is in its right shard
is a question for schemas.contract.check. The comparer takes for granted that no key has expired: views and sessions are
retained for longer than the run took. Rejects may be there twice (they are delivered at least once) and ahead of
progress (a batch that was not committed), both of which are counted.

    python -m load.judge --config tidemark.toml [--json FILE]        status 1 when anything differs
"""

import argparse
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from load.judge import published, shares
from load.judge.hashes import check_hashes, check_indexes
from load.judge.oracle import Coordinate, Offsets, Record, expected, records
from load.judge.outlets import check_outlets, outlets_of
from load.judge.rejects import check_partitions, check_rejects, place_of, reject_headers
from load.judge.rules import Reference, Rules, read_rules
from load.judge.verdict import Hash, Verdict
from schemas import contract


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
    former: Collection[str] = (),
    processes: int = 1,
) -> Verdict:
    """Read Redis, the rejects and the topics, and compare; `starts` to `archive` are as for `oracle.expected`.

    `lost` says of how many records each partition was robbed before anybody could read them. Readings that the service has
    rejected for being behind the watermark, or of too many devices, are differences, unless they `may_be_refused`: then they are
    counted. Windows of `former` views, which were removed while the service ran, are left out. With several `processes` the
    oracle shares the partitions among them, for topics of millions of records.
    Raises redis.RedisError, RedisClusterException and KafkaException when one of them cannot be read.
    """
    rules = read_rules(Path(settings_path))
    verdict = Verdict()
    options: dict[str, Any] = {"decode_responses": True, "encoding_errors": "surrogateescape"}
    url = redis_url or rules.redis_url
    with published.connect(url, cluster=rules.redis_cluster, **options) as client:
        progress = _progress(client, rules, verdict)
        if progress is None:
            return verdict
        ends = {t: {int(p): int(o) for p, o in ps.items()} for t, ps in json.loads(progress["offsets"]).items()}
        verdict.progress = _reached(progress)
        refused = _refused(rules, bootstrap, {"behind", "too_many_devices"} if may_be_refused else ())
        verdict.refused = len(refused)
        # Which of several copies is the first one is for the service to say.
        refused |= _refused(rules, bootstrap, {"duplicate"}) if rules.distinct else {}
        marked = marks(rules, bootstrap)
        if marked.replayed:
            every = _refused(rules, bootstrap, None)
            refused |= {place: every.get(place, "replayed") for place in marked.replayed}
        right = expected(
            settings_path,
            bootstrap,
            watermark_ms=verdict.progress["watermark"],
            idle_ms=verdict.progress["idle"],
            ends=ends,
            starts=starts,
            reference=reference,
            archive=archive,
            corrected=marked.corrected,
            partly=marked.partly,
            refused=refused,
            fill=partial(
                shares.fill,
                settings_path=Path(settings_path),
                bootstrap=bootstrap,
                ends=ends,
                refused=refused,
                processes=processes,
            )
            if processes > 1 and shares.may_be_shared(rules)
            else None,
        )
        titles = _titles(client, rules)
        names = {title: name for name, title in titles.items()}
        hashes = published.hashes(client, rules.prefix, shards=rules.shards)
        check_hashes(right, rules.prefix, _served(hashes, rules.prefix, titles, former), verdict)
        check_indexes(
            right,
            rules.prefix,
            {
                f"{rules.prefix}:keys:{view.name}": _sorted_set(
                    client, rules, f"keys:{names.get(view.name, view.name)}"
                )
                for view in rules.views
            },
            verdict,
        )
    check_outlets(right, rules, outlets_of(Path(settings_path)), verdict)
    topics = sorted({rules.rejects.format(topic=topic) for topic in rules.topics})
    stored = check_rejects(right, records(rules, topics, bootstrap), verdict)
    check_partitions(right, stored, ends, verdict, lost)
    return verdict


def _titles(client: contract.Client, rules: Rules) -> dict[str, str]:
    """The names of the views by those in keys, as meta has them; of the settings where there is no meta."""
    text: Any = client.get(f"{contract.prefixes(rules.prefix, rules.shards)[0]}:meta")
    if text is None:
        return {view.name: view.name for view in rules.views}
    return {each["name"]: each.get("of", each["name"]) for each in json.loads(text)["views"] if not each.get("next")}


def _served(
    hashes: Iterable[tuple[str, Hash]], prefix: str, titles: Mapping[str, str], former: Collection[str]
) -> Iterator[tuple[str, Hash]]:
    """The hashes under the names that readers use. Windows of replaced versions, and of `former` views, are left out."""
    replaced = {title for name, title in titles.items() if name != title and title not in titles}
    for key, fields in hashes:
        kind, _, name = key.removeprefix(f"{prefix}:").partition(":")
        view, _, rest = name.partition(":")
        if kind != "window" or titles.get(view) == view:
            yield key, fields
        elif view in titles:
            yield f"{prefix}:window:{titles[view]}:{rest}", fields
        elif "@" not in view and view not in replaced and view not in former:
            yield key, fields


def _progress(client: contract.Client, rules: Rules, verdict: Verdict) -> Hash | None:
    """Progress of the shard that has the fewest batches, None when that of a shard is missing; all must be the same."""
    hashes: dict[str, Hash] = {}
    for shard in contract.prefixes(rules.prefix, rules.shards):
        answer: Any = client.hgetall(f"{shard}:progress")
        hashes[shard] = answer
        if not {"epoch", "batch", "watermark", "final", "offsets"} <= answer.keys():
            verdict.add("progress.missing", f"{shard}:progress has the fields {sorted(answer)}")
    if verdict.kinds:
        return None
    reached = {shard: (_reached(each), json.loads(each["offsets"])) for shard, each in hashes.items()}
    least = min(hashes, key=lambda shard: (int(hashes[shard]["epoch"]), int(hashes[shard]["batch"])))
    for shard, place in reached.items():
        if place != reached[least]:
            verdict.add("progress.shards", f"{shard}:progress is at {place}, that of {least} at {reached[least]}")
    return hashes[least]


def _reached(progress: Hash) -> dict[str, int]:
    """Epoch, batch, watermark, and up to where silence closes now, -1 while there is none."""
    is_silent = (progress.get("idle_epoch"), progress.get("idle_batch")) == (progress["epoch"], progress["batch"])
    numbers = {name: int(progress[name]) for name in ("epoch", "batch", "watermark")}
    return {**numbers, "idle": int(progress["idle"]) if is_silent else -1}


class Marks(NamedTuple):
    """Rejects by what their marks say. `partly` are those that only their closed values hold, with the end of the next window
    that they are to be added to."""

    corrected: set[Coordinate]
    replayed: set[Coordinate]
    partly: dict[Coordinate, int]


def marks(rules: Rules, bootstrap: str | None = None) -> Marks:
    """Return what `<rejects topic>.applied` says."""
    found = Marks(set(), set(), {})
    ended = {"corrected": found.corrected, "replayed": found.replayed}
    for topic in rules.topics:
        for record in records(rules, [f"{rules.rejects.format(topic=topic)}.applied"], bootstrap):
            partition, number, *begun = (record.key or b"").decode().split("/")
            offset, _, index = number.partition("#")
            whole = (topic, int(partition), int(offset))
            place: Coordinate = (*whole, int(index)) if index else whole
            mark = json.loads(record.value or b"{}")
            state = mark.get("state")
            if not begun and state in ended:
                ended[state].add(place)
            elif state == "correcting" and "next_ms" in mark:
                found.partly[place] = int(mark["next_ms"])
            else:
                found.partly.pop(place, None)
    for place in found.corrected | found.replayed:
        found.partly.pop(place, None)
    return found


def _refused(rules: Rules, bootstrap: str | None, reasons: Collection[str] | None) -> dict[Coordinate, str]:
    """The readings that were rejected for one of these reasons, which only the service can know, with the first one. All rejects
    for None."""
    places: dict[Coordinate, str] = {}
    for record in records(rules, sorted({rules.rejects.format(topic=topic) for topic in rules.topics}), bootstrap):
        headers = reject_headers(record)
        reason = headers.get("reason", b"").decode()
        if reasons is None or reason in reasons:
            places.setdefault(place_of(headers["topic"].decode(), headers), reason)
    return places


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m load.judge", description="Compare Redis with the oracle.")
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


def _sorted_set(client: contract.Client, rules: Rules, name: str) -> Mapping[str, float]:
    """The members of all shards."""
    members: dict[str, float] = {}
    for shard in contract.prefixes(rules.prefix, rules.shards):
        answer: Any = client.zrange(f"{shard}:{name}", 0, -1, withscores=True)
        members |= dict(answer)
    return members

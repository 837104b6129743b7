"""Checks what is in a Redis against the contract: schemas/redis.json, and the rules that no format can express.

    violations = check(client, "tidemark")              # [] when the contract holds
    violations = check(client, "tidemark", shards=3)

It reads every key of the prefix. It may run beside a writer: each key is checked by itself, except where the writer
changes two in one step. A service that starts writes `meta` shard by shard.
"""

import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import redis
from jsonschema_rs import Draft202012Validator
from redis.cluster import RedisCluster

CONTRACT = Path(__file__).with_name("redis.json")
ENDLESS_MS = 1 << 42
"""The end of the one window of a view without windows; it starts at 0."""
NEVER = "never"
"""The status of a device of the reference without a reading."""
_PAGE = 500
_KEYS = 2_000
# Of each key its type and its expiry, of a hash all its fields, too: read in one step.
_READ = """
local found = {}
for number, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  found[number] = {kind, redis.call('PTTL', key), kind == 'hash' and redis.call('HGETALL', key) or {}}
end
return found
"""

_Fields = Mapping[str, str]

Client: TypeAlias = redis.Redis | RedisCluster
"""Of one Redis, or of a Redis Cluster; a RedisClusterException of the latter is no RedisError."""


class _Shard(NamedTuple):
    """Shard `number` of `shards`: a complete store under a prefix of its own."""

    prefix: str
    number: int
    shards: int


class _Stored(NamedTuple):
    """A key, its type ("none" when it is gone), its expiry, the names and values of a hash in turn, and the score of a session in
    the list of its device's sessions."""

    key: Any
    type: str
    ttl_ms: int
    flat: list[Any]
    score: float | None


class _Kind:
    """A kind of key: a pattern of names, and schemas."""

    def __init__(self, name: str, document: Mapping[str, Any], json_texts: Mapping[str, Any]) -> None:
        kind = document["keys"][name]
        self.name: str = name
        # DOTALL: a device id may hold a line break.
        self.pattern = re.compile(kind["pattern"], re.DOTALL)
        self.type: str = kind["type"]
        self.expires: bool = kind["expires"]
        self.fields = _validator(kind.get("fields", True), document)
        self.value = _validator(kind.get("value", True), document)
        self.json_texts = json_texts

    def check_json(self, name: str, text: str) -> Iterator[str]:
        """A text that is JSON itself."""
        try:
            value = json.loads(text)
        except ValueError:
            yield f"{name} = {text!r} is not JSON"
            return
        for problem in _problems(self.json_texts[name], value):
            yield f"{name}: {problem}"


def _validator(schema: object, document: Mapping[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({"$defs": document["$defs"], "allOf": [schema]})


def _problems(validator: Draft202012Validator, value: object) -> Iterator[str]:
    for error in validator.iter_errors(value):
        place = ".".join(map(str, error.instance_path))
        yield f"{place}: {error.message}" if place else error.message


def prefixes(prefix: str, shards: int) -> tuple[str, ...]:
    """Return the prefix of each shard. One shard has the plain prefix."""
    return (prefix,) if shards == 1 else tuple(f"{{{prefix}:{number}}}" for number in range(shards))


def shard_of(text: str | bytes, shards: int) -> int:
    """Return the shard of a window's key or of a device. A `str` has bytes that are not UTF-8 as surrogates."""
    return zlib.crc32(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text) % shards


def sharded_by(name: str) -> str | None:
    """Return the text that decides in which shard a key is, None for a key that every shard has.

    `name` is the key without its prefix.
    """
    kind, _, rest = name.partition(":")
    if kind == "window":
        return rest.split(":", 2)[-1].rpartition(":")[0]
    if kind == "session":
        return rest.rpartition(":")[0]
    return rest if kind in {"sessions", "device"} else None


def scan(client: Client, prefix: str, names: str = "*") -> Iterator[Any]:
    """Yield the keys of one shard whose names without the prefix match `names`. A key may come twice.

    In a Redis Cluster only the primary that has the shard's slot is read. Redis looks at every key that it has.
    """
    options: dict[str, Any] = {"match": f"{escaped(prefix)}:{names}", "count": _KEYS}
    if isinstance(client, RedisCluster) and prefix.startswith("{"):
        cluster: Any = client  # get_node_from_key is not typed
        options["target_nodes"] = cluster.get_node_from_key(f"{prefix}:")
    return client.scan_iter(**options)


def escaped(prefix: str) -> str:
    """A prefix of any characters, in a pattern for SCAN."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", prefix)


def closed_by(window: Mapping[str, str], progress: Mapping[str, str], view: str) -> str:
    """Why a window of a view (its name in keys) is closed: "watermark", "settled" or "idle", "" if it is open.

    `progress` was read before the window.
    """
    end = int(window["end"])
    if end <= int(progress.get("final", -1)):
        return "watermark"
    if end <= json.loads(progress.get("settled", "{}")).get(view, -1):
        return "settled"
    if end > int(progress.get("idle", -1)):
        return ""
    was_written, was_silent = (
        (int(of[epoch]), int(of[batch]))
        for of, epoch, batch in ((window, "epoch", "batch"), (progress, "idle_epoch", "idle_batch"))
    )
    return "idle" if was_written <= was_silent else ""


def check(client: Client, prefix: str, shards: int = 1) -> list[str]:
    """Return every violation as "<key>: <what>", in no order; keys that expire meanwhile are passed over.

    `client` may or may not decode its answers. Raises redis.RedisError or RedisClusterException when Redis does not answer.
    """
    kinds = _kinds()
    stores = [_Shard(each, number, shards) for number, each in enumerate(prefixes(prefix, shards))]
    violations = [
        f"{_text(stored.key)}: {what}"
        for shard in stores
        for stored in _stored(client, shard)
        for what in _check_key(client, shard, stored, kinds)
    ]
    violations += _check_metas(client, stores)
    if shards > 1:
        violations += [f"{_text(key)}: is in none of the {shards} shards" for key in _strays(client, prefix, shards)]
    return violations


def _stored(client: Client, shard: _Shard) -> Iterator[_Stored]:
    keys = list(set(scan(client, shard.prefix)))
    for first in range(0, len(keys), _PAGE):
        page = keys[first : first + _PAGE]
        found = _answer(client.eval(_READ, len(page), *page))
        lists = {key: listed for key in page if (listed := _list_of(shard.prefix, key))}
        scores = dict(zip(lists, _scores(client, list(lists.values())), strict=True))
        for key, (kind, ttl_ms, flat) in zip(page, found, strict=True):
            yield _Stored(key, _text(kind), int(ttl_ms), flat, scores.get(key))


def _list_of(prefix: str, key: Any) -> tuple[Any, Any] | None:
    """The list of its device's sessions and the name there of a session, None for another key.

    A device's id may be any bytes, so both are what the client gave.
    """
    texts = f"{prefix}:session:", f"{prefix}:sessions:", ":"
    kind, kinds, colon = [each.encode() for each in texts] if isinstance(key, bytes) else texts
    if not key.startswith(kind):
        return None
    device, _, start = key.removeprefix(kind).rpartition(colon)
    return kinds + device, start


def _scores(client: Client, members: list[tuple[Any, Any]]) -> list[float | None]:
    """The scores of members of sorted sets, in one question."""
    pipe = client.pipeline(transaction=False)
    for name, member in members:
        pipe.zscore(name, member)
    scores: list[float | None] = pipe.execute()
    return scores


def _strays(client: Client, prefix: str, shards: int) -> Iterator[Any]:
    """Keys that the prefix would have with another number of shards."""
    own = tuple(f"{each}:" for each in prefixes(prefix, shards))
    pattern = re.compile(rf"({re.escape(prefix)}|\{{{re.escape(prefix)}:\d+\}}):.*", re.DOTALL)
    for match in (f"{escaped(prefix)}:*", f"{{{escaped(prefix)}:*}}:*"):
        for key in set(client.scan_iter(match=match, count=_KEYS)):
            if pattern.fullmatch(_name(key)) and not _name(key).startswith(own):
                yield key


def _check_metas(client: Client, stores: list[_Shard]) -> Iterator[str]:
    keys = [f"{shard.prefix}:meta" for shard in stores]
    texts = [_answer(client.get(key)) if _text(client.type(key)) == "string" else None for key in keys]
    first = next((text for text in texts if text is not None), None)
    for key, text in zip(keys, texts, strict=True):
        if text != first:
            yield f"{key}: {'is missing' if text is None else 'is not that of the other shards'}"
        try:
            has = json.loads(text or "{}").get("shards", 1)
        except (ValueError, AttributeError):
            continue  # its schema is violated, too
        if text is not None and has != len(stores):
            yield f"{key}: shards = {has}, not {len(stores)}"


def _check_key(client: Client, shard: _Shard, stored: _Stored, kinds: list[_Kind]) -> Iterator[str]:
    key = stored.key
    name = _name(key).removeprefix(f"{shard.prefix}:")
    found = next(((kind, match) for kind in kinds if (match := kind.pattern.fullmatch(name))), None)
    if found is None:
        yield "is no key of the contract"
        return
    kind, match = found
    text = sharded_by(name)
    right = 0 if kind.name == "lease" else shard.number if text is None else shard_of(text, shard.shards)
    if right != shard.number:
        yield f"is in shard {shard.number}, and belongs to shard {right}"
    if stored.type not in {kind.type, "none"}:
        yield f"is a {stored.type}, the contract says {kind.type}"
    elif stored.type == "hash":
        yield from _check_hash(stored, kind, match.groupdict())
        if kind.name == "session" and stored.score != int(match["start"]):
            yield from _check_listed(client, shard.prefix, key)
    elif stored.type != "none":
        if not (kind.name == "keys" and _are_endless(client, key)):
            yield from _check_expiry(kind, stored.ttl_ms)
        yield from _OTHERS.get(kind.name, _nothing)(client, key, kind)
        if kind.name in {"keys", "skewed", "never"} and shard.shards > 1:
            yield from _check_members(client, key, shard)


def _are_endless(client: Client, key: bytes) -> bool:
    """Whether a view's keys are those of a view without windows: they do not expire, and their scores are 0."""
    [(_, score)] = _answer(client.zrange(key, -1, -1, withscores=True)) or [(b"", 1)]
    return bool(score == 0)


def _check_members(client: Client, key: bytes, shard: _Shard) -> Iterator[str]:
    """The keys of windows, or devices, in a sorted set."""
    for member, _ in client.zscan_iter(key, count=_PAGE):
        right = shard_of(member, shard.shards)
        if right != shard.number:
            yield f"has {_text(member)}, which belongs to shard {right}"


def _check_hash(stored: _Stored, kind: _Kind, place: Mapping[str, str]) -> Iterator[str]:
    texts = [_text(item) for item in stored.flat]
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    ttl_ms = stored.ttl_ms
    if kind.name == "window" and fields.get("end") == str(ENDLESS_MS):
        expiry = [] if ttl_ms == -1 else [f"is of a view without windows, and expires in {ttl_ms} ms"]
    elif kind.name == "device" and fields.get("status") == NEVER:
        expiry = [] if ttl_ms == -1 else [f"has never sent, and expires in {ttl_ms} ms"]
    else:
        expiry = [*_check_expiry(kind, ttl_ms)]
    problems = [*expiry, *_problems(kind.fields, fields)]
    yield from problems
    if problems:
        return
    if kind.name == "window":
        yield from _check_window(fields, place)
    elif kind.name == "session":
        yield from _check_session(fields, place)
    elif kind.name == "device":
        yield from _check_device(fields)
    elif kind.name == "progress":
        yield from kind.check_json("offsets", fields["offsets"])
        if int(fields["final"]) < int(fields["watermark"]):
            yield f"final = {fields['final']} is behind the watermark {fields['watermark']}"


def _check_device(fields: _Fields) -> Iterator[str]:
    if fields["status"] in {"online", "quiet"} and not fields["session"]:
        yield f"status = {fields['status']} with session = {fields['session']!r}"
    for name in fields if fields["status"] == "offline" else ():
        if name.endswith(".status") and not name.startswith("ref.") and fields[name] != "offline":
            yield f"status = offline with {name} = {fields[name]}"
    is_never = fields["status"] == NEVER
    if is_never != (fields["epoch"] == "0") or (is_never and fields["last_seen"] != "0"):
        yield f"status = {fields['status']} with epoch = {fields['epoch']} and last_seen = {fields['last_seen']}"


def _check_expiry(kind: _Kind, ttl_ms: int) -> Iterator[str]:
    if (ttl_ms == -1) == kind.expires:
        yield "never expires" if kind.expires else f"expires in {ttl_ms} ms"


def _check_window(fields: _Fields, place: Mapping[str, str]) -> Iterator[str]:
    """A window may lack any statistic but `count` and `last`: a rule about a statistic that is absent holds."""
    start, end, last, count = (int(fields[name]) for name in ("start", "end", "last", "count"))
    if place["start"] != fields["start"]:
        yield f"start = {start} is not the key's"
    complete_from = int(fields.get("complete_from", -1))
    if (end == ENDLESS_MS and complete_from < 0) or (end != ENDLESS_MS and -1 < complete_from <= start):
        yield f"complete_from = {fields.get('complete_from')} with start = {start} and end = {end}"
    first = int(fields.get("first", last))
    if not count:
        if not last < start:
            yield f"count = 0 with start = {start} and last = {last}"
    elif not start <= first <= last < end:
        yield f"start <= first <= last < end does not hold: {start}, {first}, {last}, {end}"
    total, mean, low, high, stddev = (_number(fields, name) for name in ("sum", "mean", "min", "max", "stddev"))
    slack = 1e-9 * max(abs(low), abs(high), 1e-300)
    if mean < low - slack or mean > high + slack or low > high:
        yield f"min <= mean <= max does not hold: {low}, {mean}, {high}"
    if abs(mean * count - total) > (1e-9 * abs(mean) if math.isnan(slack) else slack) * count:
        yield f"mean * count = {mean * count} is not sum = {total}"
    if int(fields.get("distinct", count)) > count:
        yield f"distinct = {fields['distinct']} is more than count = {count}"
    for name in ("first_value", "last_value", "median", "p95", "p99"):
        if (value := _number(fields, name)) < low or value > high:
            yield f"{name} = {value} is not between min and max: {low}, {high}"
    if stddev < 0 or stddev > (high - low) / 2 + slack:
        yield f"stddev = {stddev} is not between 0 and half of max - min"


def _number(fields: _Fields, name: str) -> float:
    """NaN, of which no comparison is true, where the field is absent."""
    return float(fields.get(name, "nan"))


def _check_session(fields: _Fields, place: Mapping[str, str]) -> Iterator[str]:
    if place["start"] != fields["start"]:
        yield f"start = {fields['start']} is not the key's"
    if int(fields["last"]) - int(fields["start"]) != int(fields["duration"]):
        yield f"duration = {fields['duration']} is not last - start"
    state, reason = fields["state"], fields["reason"]
    if reason not in {"open": {""}, "closed": {"gap", "max_duration"}, "merged": {"merged"}}[state]:
        yield f"state = {state} with reason = {reason!r}"
    if (state == "closed") != (fields["closed_by"] != ""):
        yield f"state = {state} with closed_by = {fields['closed_by']!r}"
    if (state == "merged") != ("merged_into" in fields):
        yield f"state = {state} with{'' if 'merged_into' in fields else 'out'} merged_into"
    for name in [n.removesuffix(".count") for n in fields if n.endswith(".count")]:
        has = [part for part in ("mean", "min", "max") if f"{name}.{part}" in fields]
        if len(has) != (3 if int(fields[f"{name}.count"]) else 0):
            yield f"{name}.count = {fields[f'{name}.count']} with {', '.join(has) or 'no values'}"


def _check_listed(client: Client, prefix: str, key: Any) -> Iterator[str]:
    """Read once more: a session may have been written, or removed, between its hash and its score."""
    listed = _list_of(prefix, key)
    score = _scores(client, [listed])[0] if listed else None
    if listed and score != int(listed[1]) and _answer(client.exists(key)):
        yield f"has the score {score} in the list of its device's sessions"


def _check_string(client: Client, key: bytes, kind: _Kind) -> Iterator[str]:
    value = _answer(client.get(key))
    if value is not None:
        yield from _problems(kind.value, _text(value))


def _check_meta(client: Client, key: bytes, kind: _Kind) -> Iterator[str]:
    text = _answer(client.get(key))
    if text is not None:
        yield from kind.check_json("meta", _text(text))


def _check_stream(client: Client, key: bytes, kind: _Kind) -> Iterator[str]:
    start = "-"
    while entries := _answer(client.xrange(key, min=start, count=_PAGE)):
        for number, fields in entries:
            texts = {_text(name): _text(value) for name, value in fields.items()}
            for what in (*_problems(kind.fields, texts), *kind.check_json("keys", texts.get("keys", "[]"))):
                yield f"entry {_text(number)} {what}"
        start = f"({_text(entries[-1][0])}"


def _nothing(_client: Client, _key: bytes, _kind: _Kind) -> Iterator[str]:
    return iter(())


_OTHERS: Mapping[str, Callable[[Client, bytes, _Kind], Iterator[str]]] = {
    "changes": _check_stream,
    "correction": _check_string,
    "ends": _check_string,
    "epoch": _check_string,
    "evicted": _check_string,
    "lease": _check_string,
    "meta": _check_meta,
    "rebuild": _check_string,
    "republish": _check_string,
}


def _kinds() -> list[_Kind]:
    document = json.loads(CONTRACT.read_text(encoding="utf-8"))
    json_texts = {name: _validator(schema, document) for name, schema in document["json"].items()}
    return [_Kind(name, document, json_texts) for name in document["keys"]]


def _answer(reply: Any) -> Any:
    """redis-py types its replies as awaitable or not; this client's are not."""
    return reply


def _name(key: Any) -> str:
    """A key as text from which its bytes can be told."""
    return key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else str(key)


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)

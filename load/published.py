"""What an application reads: every window, session and device of a prefix, a window with what progress says of it."""

from collections.abc import Iterator, Sequence
from typing import Any

import redis

from schemas import contract

KINDS = "window", "session", "device"
_PAGE = 2_000


def hashes(
    client: "redis.Redis", prefix: str, kinds: Sequence[str] = KINDS, within: str = ""
) -> Iterator[tuple[str, dict[str, str]]]:
    """Every hash of these kinds by key, of keys that go on with `within`; a key may come twice. `client` decodes its answers.

    A window has `closed_by` and `revision`, too, whatever is stored. Progress is read before the hashes.
    """
    progress: Any = client.hgetall(f"{prefix}:progress")
    for kind in kinds:
        for page in _pages(client, f"{contract.escaped(prefix)}:{kind}:{within}*"):
            pipe = client.pipeline(transaction=False)
            for key in page:
                pipe.hgetall(key)
            for key, fields in zip(page, pipe.execute(), strict=True):
                if fields:  # else it has expired
                    yield key, _whole(kind, fields, progress)


def read(client: Any, prefix: str, name: str) -> dict[str, str]:
    """One hash, {} if there is none; `name` is the key without the prefix."""
    progress, fields = client.hgetall(f"{prefix}:progress"), client.hgetall(f"{prefix}:{name}")
    return _whole(name.partition(":")[0], fields, progress) if fields else {}


def _whole(kind: str, fields: dict[str, str], progress: dict[str, str]) -> dict[str, str]:
    if kind == "window":
        return {"revision": "0", **fields, "closed_by": contract.closed_by(fields, progress)}
    return fields


def _pages(client: "redis.Redis", pattern: str) -> Iterator[list[str]]:
    cursor = -1
    while cursor:
        answer: Any = client.scan(max(cursor, 0), match=pattern, count=_PAGE)
        cursor, page = answer
        yield page

"""How many shards a prefix has, and what happens when that changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from tidemark_client.errors import ContractError
from tidemark_client.names import Names
from tidemark_client.steps import Query, Steps
from tidemark_client.values import Meta

T = TypeVar("T")


class Layout:
    """The number of shards that a client has found. It is looked for before the first query, and kept."""

    def __init__(self, plain: Names) -> None:
        """`plain` are the names of one shard."""
        self._plain = plain
        self._found: Names | None = None

    def ask(self, query: Query[T]) -> Steps[T]:
        """The steps of a query, with the names that the prefix has. Raises ContractError where they have changed.

        The next query goes on with the new names.
        """
        if self._found is None:
            self._found = yield from _find(self._plain)
        names = self._found
        if names is None:
            if self._plain.in_cluster:
                raise absent(self._plain)
            # Before the first batch, one Redis has nothing: no device, no changes. That is an answer.
            names = self._plain
        try:
            return (yield from query.steps(names))
        except ContractError:
            now = yield from _find(self._plain)
            if now is None or now.shards == names.shards:
                raise
            self._found = now
            raise _changed(names, now.shards) from None


def meta(names: Names) -> Steps[Meta]:
    """The meta of the first shard that has one. Raises ContractError, also where it has another number of shards."""
    [text] = yield [("GET", names.shard(0).meta)]
    if text is None and names.shards > 1:
        texts = yield [("GET", each.meta) for each in names.stores[1:]]
        text = next((each for each in texts if each is not None), None)
    if text is None:
        raise absent(names)
    check_meta(names, text)
    return Meta.of(text, names.shard(0).meta)


def check(names: Names) -> Steps[None]:
    """Raise ContractError where values lie under other names by now. To be asked when a value is missing."""
    [text] = yield [("GET", names.shard(0).meta)]
    if text is not None:
        check_meta(names, text)
        return
    other = yield from _find(replace(names, shards=1))
    if other is not None and other.shards != names.shards:
        raise _changed(names, other.shards)


def check_meta(names: Names, text: str | None) -> None:
    """Raise ContractError where the meta of the first shard has another number of shards."""
    if text is not None and (shards := Meta.of(text, names.shard(0).meta).shards) != names.shards:
        raise _changed(names, shards)


def absent(names: Names) -> ContractError:
    """The error where there is no meta."""
    several = replace(names, shards=max(names.shards, 2)).shard(0).meta
    return ContractError(
        f"there is no {several} and no {names.prefix}:meta. Is {names.prefix!r} the service's redis.prefix, and has it "
        "written its first batch?"
    )


def _find(plain: Names) -> Steps[Names | None]:
    """The names, or None where neither the prefix nor its first shard has a meta. Raises ContractError."""
    # One after the other: a user's rights may end at the keys of the prefix itself.
    for store in (plain, replace(plain, shards=2).shard(0)):
        [text] = yield [("GET", store.meta)]
        if text is None:
            continue
        shards = Meta.of(text, store.meta).shards
        if (shards == 1) != (store is plain):
            msg = (
                f"{store.meta} has shards = {shards}. One shard has the prefix itself, several have "
                f"{{{plain.prefix}:0}} and so on. Is {plain.prefix!r} the service's redis.prefix?"
            )
            raise ContractError(msg)
        return replace(plain, shards=shards)
    return None


def _changed(names: Names, shards: int) -> ContractError:
    return ContractError(
        f"prefix {names.prefix!r} had {names.shards} shard(s), and has {shards} now: read again what was read before"
    )

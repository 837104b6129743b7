"""`tidemark checkpoint init --remove-values`: remove every key under the prefix but the epoch.

A new checkpoint then publishes all values again. `final` of progress never falls, so after a record of the future Redis refuses
the windows of a year. Another service may have a prefix that begins with this one and a colon: its keys stay.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from service.commands import offline
from service.printing import counted
from service.redis import link
from service.redis.keys import Keys, shards
from service.redis.link import Budget
from service.settings import Settings


def remove_values(settings: Settings, say: Callable[[str], object], *, dry: bool = False) -> None:
    """Remove the values while no service runs. Raises TidemarkError."""
    prefix = settings.redis.prefix
    if dry:
        many = sum(len(names) for *_, names in _keys(settings))
        say(f"{counted(many, 'key')} under {prefix} would be removed")
        return
    with offline.term(settings, say) as lease:
        removed = 0
        for keys, client, budget, names in _keys(settings):
            if names := [name for name in names if name not in {keys.lease.encode(), keys.epoch.encode()}]:
                removed += budget.attempt(partial(client.unlink, *names))
        offline.confirm(lease, f"{counted(removed, 'key')} are removed")
    say(f"{counted(removed, 'key')} under {prefix} are removed; start the service, which publishes them again")


def _keys(settings: Settings) -> Iterator[tuple[Keys, Any, Budget, list[bytes]]]:
    """Yield the keys of a prefix, by pages; a key may occur twice."""
    for keys in shards(settings.redis):
        with link.reader(settings.redis, keys, "the keys of the prefix") as (client, budget):
            # An epoch is a string, and no key that a prefix has many of is one.
            epochs = link.scan(client, budget, keys.matching("*:epoch"), settings.redis.chunk, _type="string")
            others = tuple(name.removesuffix(b"epoch") for names in epochs for name in names)
            for names in link.scan(client, budget, keys.matching("*"), settings.redis.chunk):
                yield keys, client, budget, [name for name in names if keys.has(name) and not name.startswith(others)]

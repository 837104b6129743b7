"""What an application reads: every window, session and device of a prefix, a window with what progress says of it.

One Redis, one that sentinels watch, or a Redis Cluster, and any number of shards: a shard is a complete store under its own
prefix.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import redis
import redis.cluster
import redis.sentinel

from schemas import contract
from tidemark_client import cluster as tidemark_cluster
from tidemark_client import sentinel as tidemark_sentinel

KINDS = "window", "session", "device"
_PAGE = 2_000


def connect(url: str, *, cluster: bool = False, **options: Any) -> contract.Client:
    """Return a client of one Redis, or of the Redis Cluster whose nodes `url` names, separated by commas.

    Raises redis.RedisError or RedisClusterException when no node of a cluster answers.
    """
    if tidemark_sentinel.is_sentinel(url):
        primary: redis.Redis = tidemark_sentinel.connect(url, redis.sentinel.Sentinel, options)
        return primary
    if not cluster:
        return redis.Redis.from_url(url, **options)
    package: Any = redis.cluster  # ClusterNode is not typed
    client: redis.cluster.RedisCluster = tidemark_cluster.connect(
        url, package.RedisCluster, package.ClusterNode, options
    )
    return client


def hashes(
    client: contract.Client, prefix: str, kinds: Sequence[str] = KINDS, within: str = "", shards: int = 1
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield every hash of these kinds by key, of keys that go on with `within`; a key may come twice.

    A key is named as in a prefix of one shard, whichever shard it is in. A window has `closed_by` and `revision`, too, whatever
    is stored. The progress of a shard is read before its hashes. `client` decodes its answers.
    """
    for shard in contract.prefixes(prefix, shards):
        progress = _hash(client, f"{shard}:progress")
        for kind in kinds:
            keys = contract.scan(client, shard, f"{kind}:{within}*")
            while page := list(islice(keys, _PAGE)):
                pipe = client.pipeline(transaction=False)
                for key in page:
                    pipe.hgetall(key)
                for key, fields in zip(page, pipe.execute(), strict=True):
                    if fields:  # else it has expired
                        name = key.removeprefix(f"{shard}:")
                        yield f"{prefix}:{name}", _whole(name, fields, progress)


def read(client: contract.Client, prefix: str, name: str, shards: int = 1) -> dict[str, str]:
    """Return one hash, {} if there is none. `name` is the key without the prefix.

    A key that every shard has is read in shard 0.
    """
    shard = contract.prefixes(prefix, shards)[contract.shard_of(contract.sharded_by(name) or "", shards)]
    progress, fields = _hash(client, f"{shard}:progress"), _hash(client, f"{shard}:{name}")
    return _whole(name, fields, progress) if fields else {}


def _whole(name: str, fields: dict[str, str], progress: dict[str, str]) -> dict[str, str]:
    kind, _, rest = name.partition(":")
    if kind == "window":
        closed_by = contract.closed_by(fields, progress, rest.partition(":")[0])
        return {"revision": "0", **fields, "closed_by": closed_by}
    return fields


def _hash(client: contract.Client, key: str) -> dict[str, str]:
    answer: Any = client.hgetall(key)
    fields: dict[str, str] = answer
    return fields

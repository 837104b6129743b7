"""`tidemark devices --skewed`: the devices whose clocks are ahead, from Redis."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError

from service.errors import SinkError
from service.publication import meta
from service.redis import client as redis_client
from service.redis.keys import Keys, shards
from service.settings import Redis

_FIELDS = ("early", "early.at", "early.ahead", "last_seen")


def skewed(settings: Redis) -> list[dict[str, Any]]:
    """The devices with early readings, newest early reading first; times in ms. Raises SinkError."""
    meta.require_stored(settings)
    devices = [device for keys in shards(settings) for device in _skewed(settings, keys)]
    return sorted(devices, key=lambda device: device["early.at"] or 0, reverse=True)


def _skewed(settings: Redis, keys: Keys) -> Iterator[dict[str, Any]]:
    try:
        with redis_client.client(settings, keys, decode_responses=True, encoding_errors="backslashreplace") as client:
            marked: Any = client.zrevrange(keys.skewed, 0, -1)
            pipe = client.pipeline(transaction=False)
            for device in marked:
                pipe.hmget(keys.device(device), *_FIELDS)
            hashes = pipe.execute()
    except RedisError as error:
        what = f"Redis at {redis_client.address(settings, keys)} does not answer: {error}"
        raise SinkError(what, remedy="Check that it runs and can be reached from here") from error
    for device, values in zip(marked, hashes, strict=True):
        fields = {name: int(text) if text else None for name, text in zip(_FIELDS, values, strict=True)}
        yield {"device": device, **fields}


def table(devices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines for people."""
    yield f"{len(devices)} {'device sends' if len(devices) == 1 else 'devices send'} readings from the future"
    if devices:
        yield f"{'early':>9}  {'ahead by':>12}  {'last early (ms)':>15}  device"
    for each in devices:
        # All are None where the hash has expired, or somebody has removed it.
        early, at_ms = ("-" if each[name] is None else each[name] for name in ("early", "early.at"))
        ahead = "-" if each["early.ahead"] is None else f"{each['early.ahead'] / 1000:.1f} s"
        yield f"{early:>9}  {ahead:>12}  {at_ms:>15}  {each['device']}"

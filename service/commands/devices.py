"""`tidemark devices --skewed`: the devices whose clocks are ahead, from Redis."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError

from service.errors import SinkError
from service.redis import client as redis_client
from service.redis.keys import Keys
from service.settings import Redis

_FIELDS = ("early", "early.at", "early.ahead", "last_seen")


def skewed(settings: Redis) -> list[dict[str, Any]]:
    """The devices with early readings, newest early reading first; times in ms. Raises SinkError."""
    keys = Keys(settings.prefix)
    try:
        with redis_client.client(settings, decode_responses=True, encoding_errors="backslashreplace") as client:
            marked: Any = client.zrevrange(keys.skewed, 0, -1)
            pipe = client.pipeline(transaction=False)
            for device in marked:
                pipe.hmget(keys.device(device), *_FIELDS)
            hashes = pipe.execute()
    except RedisError as error:
        what = f"Redis at {redis_client.address(settings)} does not answer: {error}"
        raise SinkError(what, remedy="Check that it runs and can be reached from here") from error
    return [
        {"device": device, **{name: int(text) if text else None for name, text in zip(_FIELDS, values, strict=True)}}
        for device, values in zip(marked, hashes, strict=True)
    ]


def table(devices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines for people."""
    yield f"{len(devices)} devices send readings from the future"
    if devices:
        yield f"{'early':>9}  {'ahead by':>12}  {'last early (ms)':>15}  device"
    for each in devices:
        yield f"{each['early']:>9}  {(each['early.ahead'] or 0) / 1000:>10.1f} s  {each['early.at']:>15}  {each['device']}"

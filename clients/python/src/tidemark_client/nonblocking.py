"""How steps are taken with redis-py's connections for asyncio, to one Redis and to a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import redis
import redis.asyncio.cluster

from tidemark_client.cluster import closed, is_closed_by_others, is_elsewhere, key_of, scanned
from tidemark_client.sentinel import opened
from tidemark_client.steps import Command, Owners, Pause, Scan, Step

T = TypeVar("T")


class One:
    """Steps at one Redis."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def take(self, step: Step) -> list[Any]:
        """The replies, with Redis's errors among them."""
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return []
        if isinstance(step, Owners):
            return await self.owners(step)
        if isinstance(step, Scan):
            command = ("SCAN", step.cursor, "MATCH", step.pattern, "COUNT", step.count)
            return scanned(await self.scan(step, command))
        return await self.execute(step)

    async def execute(self, commands: list[Command]) -> list[Any]:
        async with self.connection.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    async def owners(self, step: Owners) -> list[Any]:
        return [None for _ in step.keys]

    async def scan(self, step: Scan, command: Command) -> Any:
        return await self.connection.execute_command(*command)

    async def close(self) -> None:
        for each in opened(self.connection):
            await each.aclose()


class Cluster(One):
    """Steps at a cluster: redis-py has the primary of a key's slot."""

    async def execute(self, commands: list[Command]) -> list[Any]:
        replies = await self._pipelined(commands)
        if any(map(is_elsewhere, replies)):
            # One by one, as in blocking.Cluster; these calls of redis-py find the nodes anew.
            return [await _named(self.connection.execute_command(*command)) for command in commands]
        return replies

    async def _pipelined(self, commands: list[Command]) -> list[Any]:
        """The replies to a pipeline for each node. When one fails, ClusterPipeline repeats the empty replies alone (8.1.0)."""
        await _named(self.connection.initialize())
        made: Any = redis.asyncio.cluster.PipelineCommand
        asked = [made(number, *command) for number, command in enumerate(commands)]
        parts: dict[str, tuple[Any, list[Any]]] = {}
        for each in asked:
            node = self.connection.get_node_from_key(key_of(each.args))
            parts.setdefault(node.name, (node, []))[1].append(each)
        calls = [_named(node.execute_pipeline(part)) for node, part in parts.values()]
        for (_, part), answer in zip(parts.values(), await asyncio.gather(*calls, return_exceptions=True)):
            if isinstance(answer, redis.RedisError):
                part[0].result = answer
            elif isinstance(answer, BaseException):
                raise answer
        return [each.result for each in asked]

    async def owners(self, step: Owners) -> list[Any]:
        await _named(self.connection.initialize())
        return [self.connection.get_node_from_key(key) for key in step.keys]

    async def scan(self, step: Scan, command: Command) -> Any:
        return await _named(self.connection.execute_command(*command, target_nodes=step.node))


async def _named(answer: Awaitable[T]) -> T:
    """What redis-py answers or raises; see is_closed_by_others."""
    try:
        return await answer
    except Exception as error:
        if is_closed_by_others(error):
            raise closed(error) from error
        raise

"""How steps are taken with redis-py's blocking connections, to one Redis and to a cluster."""

from __future__ import annotations

import threading
import time
from typing import Any

import redis.cluster

from tidemark_client.cluster import closed, is_closed_by_others, is_elsewhere, scanned
from tidemark_client.sentinel import opened
from tidemark_client.steps import Command, Owners, Pause, Scan, Step


class One:
    """Steps at one Redis."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def take(self, step: Step) -> list[Any]:
        """The replies, with Redis's errors among them."""
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return []
        if isinstance(step, Owners):
            return self.owners(step)
        if isinstance(step, Scan):
            return scanned(self.scan(step, ("SCAN", step.cursor, "MATCH", step.pattern, "COUNT", step.count)))
        return self.execute(step)

    def execute(self, commands: list[Command]) -> list[Any]:
        with self.connection.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies

    def owners(self, step: Owners) -> list[Any]:
        return [None for _ in step.keys]

    def scan(self, step: Scan, command: Command) -> Any:
        return self.connection.execute_command(*command)

    def close(self) -> None:
        for each in opened(self.connection):
            each.close()


class Cluster(One):
    """Steps at a cluster: redis-py sends each command to the primary of the key's slot."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._lock = threading.Lock()
        self._running = 0
        self._is_closing = False

    def take(self, step: Step) -> list[Any]:
        with self._lock:
            self._running += 1
        try:
            return super().take(step)
        except Exception as error:
            if is_closed_by_others(error):
                raise closed(error) from error
            raise
        finally:
            self._end(-1)

    def execute(self, commands: list[Command]) -> list[Any]:
        made: Any = redis.cluster.PipelineCommand
        stack = [made(command, {}, number) for number, command in enumerate(commands)]
        with self.connection.pipeline() as pipeline:
            replies: list[Any] = pipeline.send_cluster_commands(stack, raise_on_error=False, allow_redirections=False)
        if any(map(is_elsewhere, replies)):
            # redis-py would repeat only the commands that failed, after the others. The order within a shard counts: progress
            # that is read after a window may call it final without its last reading.
            return [self.connection.execute_command(*command) for command in commands]
        return replies

    def owners(self, step: Owners) -> list[Any]:
        return [self.connection.get_node_from_key(key) for key in step.keys]

    def scan(self, step: Scan, command: Command) -> Any:
        return self.connection.execute_command(*command, target_nodes=step.node)

    def close(self) -> None:
        """Close the connections when no thread uses them any more.

        redis-py connects again where another thread has closed a connection, and may then wait for its timeout (8.1.0).
        """
        self._is_closing = True
        self._end(0)

    def _end(self, change: int) -> None:
        with self._lock:
            self._running += change
            is_last = self._is_closing and not self._running
        if is_last:
            self.connection.close()
            self.connection.disconnect_connection_pools()

"""What a query is: a generator that yields steps, and is sent the replies. client.py and aio.py take the steps."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Callable, Generic, TypeVar, Union

from tidemark_client.names import Names

T = TypeVar("T")

Command = tuple[Any, ...]


@dataclass(frozen=True)
class Pause:
    """Asks for a wait before the next step."""

    seconds: float


@dataclass(frozen=True)
class Owners:
    """Asks for the node of each key: what a Scan takes. One Redis has no nodes; its replies are None."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Scan:
    """Asks one node for a page of its keys: the replies are the next cursor, 0 at the end, and the keys."""

    node: Any
    cursor: int
    pattern: str
    count: int


Step = Union[list[Command], Pause, Owners, Scan]
"""A list is of commands that are sent together; those to keys of one shard are executed in their order.

The answer to commands is the list of their replies; to a pause it is [].
"""

Steps = Generator[Step, list[Any], T]


@dataclass(frozen=True)
class Query(Generic[T]):
    """A question; it can be asked any number of times."""

    steps: Callable[[Names], Steps[T]]
    pauses: bool = False

"""Read the values that a service of Tidemark keeps in Redis.

from tidemark_client import Client

with Client.from_url("redis://localhost:6379/0") as client:
    window = client.latest_complete("site", "leeds", "temperature")
    print(window.mean if window else "no readings")
"""

from tidemark_client import queries
from tidemark_client.aggregate import Aggregate
from tidemark_client.aio import AsyncClient
from tidemark_client.client import Client
from tidemark_client.errors import (
    ArgumentError,
    BusyError,
    ChangesLostError,
    ClosedError,
    ContractError,
    KeyTextError,
    RefusedError,
    TidemarkClientError,
    TooManyWindowsError,
    UnavailableError,
    UnknownViewError,
)
from tidemark_client.frame import to_frame
from tidemark_client.names import Place
from tidemark_client.queries import Query, Snapshot
from tidemark_client.values import (
    CONTRACT,
    Change,
    Device,
    Early,
    Meta,
    Progress,
    Reading,
    Session,
    Summary,
    View,
    Window,
    Written,
)

__all__ = [
    "CONTRACT",
    "Aggregate",
    "ArgumentError",
    "AsyncClient",
    "BusyError",
    "Change",
    "ChangesLostError",
    "Client",
    "ClosedError",
    "ContractError",
    "Device",
    "Early",
    "KeyTextError",
    "Meta",
    "Place",
    "Progress",
    "Query",
    "Reading",
    "RefusedError",
    "Session",
    "Snapshot",
    "Summary",
    "TidemarkClientError",
    "TooManyWindowsError",
    "UnavailableError",
    "UnknownViewError",
    "View",
    "Window",
    "Written",
    "queries",
    "to_frame",
]

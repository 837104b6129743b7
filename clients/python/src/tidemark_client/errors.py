"""What can go wrong. Each error names the thing, the place and the remedy."""

from __future__ import annotations


class TidemarkClientError(Exception):
    """Base of all errors of this package."""


class UnavailableError(TidemarkClientError):
    """Redis does not answer. What was asked may be asked again."""


class RefusedError(TidemarkClientError):
    """Redis refuses a command: wrong password, or a user without the right to read these keys."""


class ContractError(TidemarkClientError):
    """The prefix has no values of Tidemark, those of an unknown version, or another number of shards than before."""


class UnknownViewError(TidemarkClientError, LookupError):
    """The service has no such view, or the view has no such measure."""


class ArgumentError(TidemarkClientError, ValueError):
    """An argument that nothing can be asked with."""


class KeyTextError(ArgumentError):
    """A key has not as many values as the view has columns."""


class TooManyWindowsError(ArgumentError):
    """A span of time has more windows than one answer may have."""


class ClosedError(TidemarkClientError):
    """The client was closed."""


class BusyError(TidemarkClientError, TimeoutError):
    """No moment was found at which no batch was being written."""


class ChangesLostError(TidemarkClientError, LookupError):
    """Entries of the change feed were trimmed away before they were read: read the keys again, then follow from the end."""

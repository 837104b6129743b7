"""Whether a source answers, and since when it does not."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

_LOGIN = re.compile(r"://[^/\s]*@")


def now_ms() -> int:
    """The wall clock in ms since 1970."""
    return time.time_ns() // 1_000_000


@dataclass
class Health:
    """`answered_ms` is the time of the last answer; `failed_ms` that of the first failure since, 0 while it answers."""

    answered_ms: int = 0
    failed_ms: int = 0
    reason: str = ""
    lacks: str = ""
    """What a source that answers does not have yet; "" for nothing."""

    @property
    def is_away(self) -> bool:
        return self.failed_ms > 0

    def answered(self, lacks: str | None = None) -> None:
        """Note an answer, and what the source lacks; None for an answer that does not say so."""
        self.answered_ms, self.failed_ms, self.reason = now_ms(), 0, ""
        if lacks is not None:
            self.lacks = lacks

    def failed(self, reason: str) -> None:
        """Keep why there was no answer, without the logins of URLs: pages show it."""
        self.failed_ms, self.reason = self.failed_ms or now_ms(), _LOGIN.sub("://", reason)

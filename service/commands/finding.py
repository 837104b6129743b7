"""What `tidemark check` says of one thing that it tried."""

from dataclasses import dataclass
from typing import Literal

from service.errors import TidemarkError

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Line:
    """What was tried and how it went; `exit_status` is the failing family's, 0 otherwise."""

    name: str
    status: Status
    detail: str
    remedy: str = ""
    exit_status: int = 0

    def __str__(self) -> str:
        shown = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}[self.status]
        remedy = f"\n       -> {self.remedy}" if self.remedy and self.status != "ok" else ""
        return f"{shown} {self.name}: {self.detail}{remedy}"


def ok(name: str, detail: str) -> Line:
    return Line(name, "ok", detail)


def failed(name: str, error: TidemarkError) -> Line:
    return Line(name, "fail", error.what, error.remedy, error.status)

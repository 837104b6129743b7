"""What a comparison has found."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

EXAMPLES = 20
Hash = Mapping[str, str]


@dataclass(slots=True)
class Verdict:
    """Number of compared values, and the differences; `kinds` counts differences as `<thing>.<missing, extra or the field>`.

    `compared` counts expected things by name. `duplicates` are rejects stored again, `ahead` are rejects beyond
    progress, `omitted` are rejects announced without their bytes for being too large, `merged` are sessions that say
    they went into another, `refused` are readings that were rejected for what only the service knows; none of these
    is a difference.
    `partitions` has start, end, consumed, admitted and rejected by "topic[partition]".
    """

    kinds: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)
    partitions: dict[str, dict[str, int]] = field(default_factory=dict)
    progress: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    ahead: int = 0
    omitted: int = 0
    merged: int = 0
    refused: int = 0

    @property
    def mismatches(self) -> int:
        """All differences; a window with two wrong fields counts twice."""
        return self.kinds.total()

    @property
    def ok(self) -> bool:
        """Whether there is no difference."""
        return not self.kinds

    def add(self, kind: str, sentence: str) -> None:
        """Count a difference; the first 20 are kept as sentences."""
        self.kinds[kind] += 1
        if len(self.examples) < EXAMPLES:
            # A device id may be any bytes, and this is to be printed.
            self.examples.append(f"{kind}: {sentence}".encode(errors="backslashreplace").decode())

    def to_json(self) -> str:
        """One JSON object of all fields, `ok` and `mismatches`."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps({"ok": self.ok, "mismatches": self.mismatches, **values}, indent=2)

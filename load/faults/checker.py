"""The checker: one history, all rules. Prints the seed and the first violation; the exit status says whether there is one.

python -m load.faults.checker .build/faults/F1/history.jsonl
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from load.faults.history import Entry, read
from load.faults.recovery import Recovers
from load.faults.rules import Loss, Observed, OneWriter, Rule, Said, Verdicts, Violation
from load.faults.values import GoesBack, Torn


def check(entries: Iterable[Entry]) -> list[Violation]:
    """Every violation of every rule, in the order in which they happened."""
    rules: list[Rule] = [Said(), Verdicts(), GoesBack(), Torn(), OneWriter(), Loss(), Recovers(), Observed()]
    found: list[Violation] = []
    for entry in entries:
        for rule in rules:
            found += rule.take(entry)
    for rule in rules:
        found += rule.end()
    return sorted(found, key=lambda violation: violation.at)


def main(argv: Sequence[str] | None = None) -> int:
    """0 when no rule is violated, 1 otherwise, 2 for a wrong command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) != 1:
        print("python -m load.faults.checker HISTORY", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    first = next(iter(read(path)))
    found = check(read(path))
    print(f"row {first.get('row')}, seed {first.get('seed')}: {len(found)} violations")
    if found:
        print(
            f"  the first, {(found[0].at - first['at']) / 1000:.1f} s after the start: {found[0].rule}: {found[0].text}"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

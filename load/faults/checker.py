"""The checker: one history, all rules. Prints the seed and the first violation; the exit status says whether there is one.

python -m load.faults.checker .build/faults/F1/history.jsonl
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from load.faults.history import Entry, read
from load.faults.recovery import Recovers
from load.faults.rules import EachShard, Loss, Observed, OneWriter, Recorded, Rule, Verdicts, Violation
from load.faults.values import GoesBack, Torn


def check(entries: Iterable[Entry]) -> list[Violation]:
    """Every violation of every rule, in the order in which they happened."""
    rules: list[Rule] = [Recorded(), Verdicts(), EachShard(GoesBack), Torn(), EachShard(OneWriter)]
    rules += [Loss(), Recovers(), Observed()]
    violations: list[Violation] = []
    for entry in entries:
        for rule in rules:
            violations += rule.take(entry)
    for rule in rules:
        violations += rule.end()
    return sorted(violations, key=lambda violation: violation.at)


def main(argv: Sequence[str] | None = None) -> int:
    """0 when no rule is violated, 1 otherwise, 2 for a wrong command line and for a file without a history."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) != 1:
        print("python -m load.faults.checker HISTORY", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    first = next(read(path), None) if path.is_file() else None
    if first is None:
        print(f"{path} is no history of make faults, or has no entry", file=sys.stderr)
        return 2
    violations = check(read(path))
    print(f"row {first.get('row')}, seed {first.get('seed')}: {len(violations)} violations")
    if violations:
        violation = violations[0]
        seconds = (violation.at - first["at"]) / 1000
        print(f"  the first, {seconds:.1f} s after the start: {violation.rule}: {violation.text}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

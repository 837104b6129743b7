"""How long the files of tests took, and which of them grew since the run before."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / ".build" / "durations.json"
MOST, LEAST_S = 10, 1.0


def by_test(reports: Iterable[pytest.TestReport]) -> dict[str, float]:
    """Seconds of each test, with its fixtures."""
    seconds: Counter[str] = Counter()
    for report in reports:
        seconds[report.nodeid] += report.duration
    return {name: round(value, 2) for name, value in sorted(seconds.items())}


def by_file(tests: dict[str, float]) -> dict[str, float]:
    seconds: Counter[str] = Counter()
    for name, value in tests.items():
        seconds[name.partition("::")[0]] += value
    return dict(seconds)


def growth(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """A line for each of the files that grew most. Only tests of both runs count: a part of the suite grows by nothing."""
    both = before.keys() & after.keys()
    old, new = (by_file({name: tests[name] for name in both}) for tests in (before, after))
    grown = sorted(((now - old[file], file, now) for file, now in new.items()), reverse=True)
    return [f"{now:7.1f} s  +{more:.1f} s  {file}" for more, file, now in grown[:MOST] if more >= LEAST_S]


def keep(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Write the file, in which the tests that did not run keep their last figures; return the lines of what grew."""
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    after = by_test(reports)
    if FILE.parent.exists():
        FILE.write_text(json.dumps(before | after, indent=0) + "\n")
    return growth(before, after)

"""How many examples Hypothesis tries, and how many cases of a long table `make test` plays."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

_FULL, _QUICK = (settings.get_profile(name).max_examples for name in ("full", "quick"))


def examples(number: int) -> settings:
    """Settings for a test with `number` examples. With the profile `half`, which `make test` uses, it has half of them; with
    `quick`, which `make check` uses, no more than that has.
    """
    most = settings.default.max_examples
    return settings(max_examples=min(number, _QUICK) if most == _QUICK else number * most // _FULL)


def one_in(number: int, cases: "Iterable[ParameterSet]") -> "list[ParameterSet]":
    """Return cases for `parametrize`. `make test` plays the first one of each `number`, the others are `thorough`."""
    return [
        pytest.param(*each.values, id=each.id, marks=[*each.marks, *([pytest.mark.thorough] if place % number else [])])
        for place, each in enumerate(cases)
    ]

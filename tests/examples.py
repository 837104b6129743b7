"""How many examples Hypothesis tries."""

from hypothesis import settings

_QUICK = settings.get_profile("quick").max_examples


def examples(number: int) -> settings:
    """Settings for a test with `number` examples; with the profile `quick`, which `make check` uses, no more than it has."""
    is_quick = settings.default.max_examples == _QUICK
    return settings(max_examples=min(number, _QUICK) if is_quick else number)

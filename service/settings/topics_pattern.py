"""`topics_pattern`: topics by their names, as a regular expression of RE2, whose time grows with the name alone.

A pattern is matched with the complete name. service/kafka/matching.py has the topics that a broker has.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo
from pydantic_core import PydanticKnownError


def matches(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches, sorted. Raises ValueError for a pattern that is none."""
    # Most settings have no pattern, and a command starts without Arrow.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    given: Any = pa.array(sorted(names), pa.string())
    return list(map(str, given.filter(pc.match_substring_regex(given, rf"\A(?:{pattern})\z")).to_pylist()))


def any_of(patterns: Sequence[str]) -> str | None:
    """Return a pattern of what one of the patterns matches, None without a pattern."""
    return "|".join(f"(?:{each})" for each in patterns) if len(patterns) > 1 else next(iter(patterns), None)


def _is_pattern(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        if not value.strip():
            raise ValueError("it is blank")

        matches(value, ["a"])
    except ValueError as error:
        why = str(error).partition("Invalid regular expression: ")[2] or str(error)
        raise ValueError(f"{value!r} is no regular expression of RE2: {why}. One is 'plant-.*'") from error
    return value


TopicsPattern = Annotated[str | None, AfterValidator(_is_pattern)]


def _or_pattern(topics: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    if not topics and info.data.get("topics_pattern", "") is None:
        raise PydanticKnownError("too_short", {"field_type": "Tuple", "min_length": 1, "actual_length": 0})
    return topics


Topics = Annotated[tuple[str, ...], AfterValidator(_or_pattern)]
"""Topics of a section, which may be none where the section has a `topics_pattern`, declared before them."""


def with_topics(section: Any) -> Any:
    """Return a section of the settings, as they are given, with no topics where it has a pattern alone."""
    return {"topics": (), **section} if isinstance(section, Mapping) and section.get("topics_pattern") else section

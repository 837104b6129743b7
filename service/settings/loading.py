"""Reading the settings: the file, the environment's overrides, and the problems of both as one error."""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from service.errors import SettingsError
from service.settings.section import Section
from service.settings.settings import Settings
from service.units import format_duration, parse_duration_ms


def load(path: Path, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the file, override it from the environment, and validate both.

    Raises SettingsError with every problem in one message. Relative paths are resolved against the folder of the file.
    """
    return loads(read(path), path, environment)


def read(path: Path) -> str:
    """Return the text of a settings file. Raises SettingsError."""
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except OSError as error:
        msg = f"{path}: the settings file cannot be read ({error.strerror})"
        raise SettingsError(msg, remedy="Name the file with --config") from error
    except ValueError as error:
        raise _no_toml(path, error) from error


def loads(text: str, path: Path, environment: Mapping[str, str] = os.environ) -> Settings:
    """`load` for the text that a file has, or is to have. Raises SettingsError."""
    given, variables = document(text, path), _variables(environment)
    return parse(_override(given, environment, variables), where=str(path), folder=path.parent, variables=variables)


def document(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of a file. Raises SettingsError."""
    try:
        return tomllib.loads(text)
    except ValueError as error:  # also a number of more digits than Python reads
        raise _no_toml(path, error) from error


def _no_toml(path: Path, error: ValueError) -> SettingsError:
    return SettingsError(f"{path}: is not TOML: {error}", remedy="See https://toml.io for the format")


def parse(
    document: Mapping[str, Any],
    *,
    where: str = "settings",
    folder: Path | None = None,
    variables: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> Settings:
    """Validate a document of sections. `variables` of the environment have set the section and key of each.

    Raises SettingsError with the key, the value and the rule of each problem.
    """
    try:
        settings = Settings.model_validate(dict(document))
    except ValidationError as error:
        problems = [each for each in error.errors() if not _is_false(each)]
        lines = [line + _origin(problem, variables) for problem in problems for line in _lines(problem)]
        msg = f"{where}: {len(lines)} problem{'s' if len(lines) > 1 else ''}:\n  " + "\n  ".join(lines)
        raise SettingsError(msg) from None
    return _resolve(settings, folder) if folder is not None else settings


_SECRET = re.compile("(?<![a-z])(url|password|options|secret|endpoint)")
"""Words in a key whose value is never shown. Of Redis only numbers are shown."""
_ADDRESSES = ("redis", "reference", "registry", "otel")
"""Sections that may be given as an address by mistake, which is not shown."""
_ADDRESS = re.compile("://|jdbc:")
"""What an address has, which may have a password; no such value is shown."""


_RULES = {
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "too_short": "needs at least {min_length} entry, has {actual_length}",
    "too_long": "must have at most {max_length} entries, has {actual_length}",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "path_type": "must be a path, which is text",
    "tuple_type": "must be a list, such as ['a', 'b']",
    "list_type": "must be a list, such as ['a', 'b']",
    "dict_type": "must be a table of keys and values",
    "mapping_type": "must be a table of keys and values",
    "model_type": "must be a section, a table of keys and values",
    "byte_size_unit": "must be bytes, such as 65536 or '64 KiB'; {unit} is no unit",
    "byte_size": "must be bytes, such as 65536 or '64 KiB'",
    "union_tag_not_found": "lacks the key {discriminator}, which says what the other keys are",
    "union_tag_invalid": "{discriminator} is '{tag}', and must be one of {expected_tags}",
}
"""The rules by pydantic's types of errors."""


def _lines(problem: Any) -> list[str]:
    """The lines of a message for one of pydantic's problems."""
    message = _rule(problem)
    if not problem["loc"]:  # from Settings itself: the lines name their places
        return message.split("\n")
    place = ".".join(str(part) for part in problem["loc"])
    kind, value = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        return [f"{place}: unknown key. Remove it or mend its spelling"]
    if kind == "missing":
        return [f"{place}: is missing and has no default"]
    is_secret = _SECRET.search(place) is not None or place in _ADDRESSES
    is_secret = is_secret or (place.startswith("redis.") and not isinstance(value, int | float))
    is_secret = is_secret or (isinstance(value, str) and _ADDRESS.search(value) is not None)
    shown = "" if isinstance(value, dict | list) else f" = {'***' if is_secret else repr(value)}"
    return [f"{place}{shown}: {message}"]


def _is_false(problem: Any) -> bool:
    """Return whether a list has too few entries for pydantic (2.14) only because it does not count those with problems."""
    return problem["type"] == "too_short" and len(problem["input"]) >= int(problem["ctx"]["min_length"])


def _rule(problem: Any) -> str:
    """Return the rule that a value breaks, in the words of a settings file: pydantic names types of Python and raw numbers."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in _RULES:
        limits = {name: _limit(limit, problem["input"]) for name, limit in context.items()}
        return _RULES[kind].format(**limits)
    message = str(problem["msg"]).removeprefix("Value error, ")
    return message.replace("Input should be", "must be", 1)


def _limit(limit: Any, value: Any) -> str:
    """Return a limit in the unit of the value: a duration for a duration."""
    try:
        is_duration = isinstance(value, str) and parse_duration_ms(value) >= 0
    except ValueError:
        is_duration = False
    if is_duration and isinstance(limit, int):
        return format_duration(limit) if limit else "0 s"
    return str(limit)


def _variables(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the section and the key of each variable TIDEMARK_<SECTION>__<KEY>."""
    names = [name for name in environment if name.startswith("TIDEMARK_") and "__" in name]
    return {name: name.removeprefix("TIDEMARK_").lower().partition("__")[::2] for name in names}


def _origin(problem: Any, variables: Mapping[str, tuple[str, str]]) -> str:
    """Return the variables that have set what one of pydantic's problems is about: the file does not have it."""
    place = problem["loc"][:2]
    is_of_key = len(place) > 1 or problem["type"] == "extra_forbidden"
    names = [name for name, keys in variables.items() if is_of_key and place == keys[: len(place)]]
    return f" (set by {', '.join(names)})" if names else ""


def _override(
    document: dict[str, Any], environment: Mapping[str, str], variables: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    """Put the values of the variables into the document. Raises SettingsError for a section that is a list."""
    for variable, (section, key) in variables.items():
        if not isinstance(document.get(section, {}), dict):
            msg = f"{variable}: [[{section}]] is a list, which the environment cannot override"
            raise SettingsError(msg, remedy="Change it in the settings file")
        document[section] = {**document.get(section, {}), key: environment[variable]}
    return document


def _resolve(settings: Settings, folder: Path) -> Settings:
    """Resolve relative paths against the folder, so that a service starts from any working directory."""

    def resolved(section: Any) -> Any:
        if isinstance(section, tuple):
            return tuple(map(resolved, section))
        if not isinstance(section, Section):
            return section
        paths: dict[str, Any] = {name: (folder / value).resolve() for name, value in section if isinstance(value, Path)}
        return section.model_copy(update=paths)

    sections = {name: resolved(section) for name, section in settings}
    checkpoint = settings.service.checkpoint
    if ":" not in checkpoint:
        sections["service"] = settings.service.model_copy(update={"checkpoint": str((folder / checkpoint).resolve())})
    sections["outlets"] = tuple(outlet.below(folder) for outlet in sections["outlets"])
    return settings.model_copy(update=sections)

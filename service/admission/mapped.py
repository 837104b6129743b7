"""List the fields of a record that the settings map."""

from service.settings import RECORD_KEY, Input

Path = tuple[str, ...]
"""The names of a field and of the fields around it, the outermost first."""


def number_paths(form: Input) -> list[str]:
    """Return the paths of the fields that are read as numbers, the event time's unless it is text."""
    times = [form.event_time] if form.event_time_unit != "iso" else []
    return list(dict.fromkeys([*times, *(path for measure in form.measures.values() for path in measure.paths)]))


def paths(form: Input) -> list[str]:
    """Return the paths of all mapped fields, each once."""
    device = [form.device_id] if form.device_id != RECORD_KEY else []
    columns = [column.path for column in form.columns.values()]
    return list(dict.fromkeys([form.event_time, *number_paths(form), *columns, *device]))


def parts(path: str) -> Path:
    """Return the names in a path."""
    return tuple(path.split("."))

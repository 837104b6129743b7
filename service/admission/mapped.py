"""List the fields of a record that the settings map."""

from service.settings import Input


def number_paths(form: Input) -> list[str]:
    """Return the paths of the fields that are read as numbers in every record, the event time's unless it is text."""
    times = [form.event_time] if form.event_time_unit != "iso" else []
    return list(
        dict.fromkeys(
            [*times, *(path for measure in form.measures.values() if not measure.conditions for path in measure.paths)]
        )
    )


def paths(form: Input) -> list[str]:
    """Return the paths of all mapped fields, each once."""
    return list(dict.fromkeys(path for _, path in form.fields))

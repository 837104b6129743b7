"""List the fields of a record that the settings map."""

from service.settings import Input


def number_paths(form: Input) -> list[str]:
    """Return the paths of the fields that are read as numbers in every record, the event time's unless it is text."""
    times = form.time_fields if form.event_time_unit != "iso" and not form.text_numbers else ()
    asked = {measure.path for measure in form.measures.values() if measure.conditions}
    measures = (path for path in form.measure_fields if path not in asked and path not in form.text_fields)
    return list(dict.fromkeys([*times, *measures]))


def paths(form: Input) -> list[str]:
    """Return the paths of all mapped fields, each once."""
    return list(dict.fromkeys(path for _, path in form.fields))

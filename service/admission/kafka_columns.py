"""Values of sources that are no fields of the record, from the columns of Spark's Kafka source.

service/commands/metadata.py reads the same from one record without Spark.
"""

from collections.abc import Sequence

from service.settings.source import Source


def sql(given: Source, topics: Sequence[str]) -> str:
    """Return SQL for the value of a source: a variant of a field of the key, a text of the others.

    `topics` are those of the input.
    """
    if given.in_document:
        path = "".join(f"['{name}']" if "'" not in name else f'["{name}"]' for name in given.names)
        return (
            f"try_variant_get(try_parse_json(try_validate_utf8(CAST(key AS STRING))), {literal('$' + path)}, 'variant')"
        )
    if given.kind == "header":
        mine = f"filter(headers, header -> header.key = {literal(given.names[0])})"
        return f"CAST(try_element_at({mine}, -1).value AS STRING)"
    if given.kind == "constant":
        return literal(given.text)
    if given.kind == "topic" and given.text:
        parts = [f"{literal(topic)}, {literal(given.of_topic(topic) or '')}" for topic in topics]
        return f"try_element_at(map({', '.join(parts)}), topic)"
    return f"CAST({given.kind} AS STRING)"


def literal(text: str) -> str:
    """Return a text as SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

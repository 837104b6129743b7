"""Generates the list of all metrics from the registry of the service."""

from service.monitoring.metrics import Metrics


def page() -> str:
    """Return the page: name, type, labels and help text of every metric, in the order of names."""
    registry = Metrics().registry
    labels = {
        name: getattr(collector, "_labelnames", ())
        for collector, names in registry._collector_to_names.items()
        for name in names
    }
    lines = [
        "# All metrics",
        "",
        "Generated from `service/monitoring/metrics.py`. What to do about each metric is in the",
    ]
    lines += ["[operator reference](../operator-reference.md#metrics).", ""]
    lines += ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for family in sorted(registry.collect(), key=lambda each: each.name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        named = ", ".join(f"`{label}`" for label in labels.get(family.name, ()))
        lines.append(f"| `{name}` | {family.type} | {named} | {family.documentation} |")
    return "\n".join(lines) + "\n"

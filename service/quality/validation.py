"""The process that validates a sample against a suite with Great Expectations, and renders its report.

    python -m service.quality.validation SUITE FOLDER

reads `sample.arrow` in the folder and writes `outcome.json` and `page.html` there. In the driver the import of Great Expectations
would hold the interpreter lock for seconds and keep 150 MB. This process has a low priority, so it does not slow the stream.
It ends with a status of service/errors.py, and prints the reason on standard error.
"""

import html
import importlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from service import clock
from service.errors import TidemarkError
from service.reference import expectations

SAMPLE, OUTCOME, PAGE = "sample.arrow", "outcome.json", "page.html"
NICE = 10

# The style sheets, scripts and pictures that the report would fetch from the network.
_FOREIGN = re.compile(
    r"<link\b[^>]*>|<script\b.*?</script>|<img\b[^>]*>|<iframe\b.*?</iframe>", re.DOTALL | re.IGNORECASE
)
_HANDLER = re.compile(r"""\son\w+=("[^"]*"|'[^']*')""")
_PICTURE = re.compile(r"url\([^)]*//[^)]*\)")
_SILENT = {"expect", "column", "table", "values", "value", "to", "be"}
STYLE = """<style>
body { font: 14px/1.4 system-ui, sans-serif; max-width: 80em; margin: 0 auto; padding: 1em }
table { border-collapse: collapse; margin: .5em 0 1em; width: 100% }
td, th { border: 1px solid #ccc; padding: .3em .6em; text-align: left; vertical-align: top }
.badge, code { background: #eee; border-radius: .2em; padding: 0 .3em }
.text-success::before { content: "\\2713"; color: #1a7f37; font-weight: bold }
.text-danger::before { content: "\\2717"; color: #c00; font-weight: bold }
</style>"""


def main(arguments: list[str]) -> int:
    """Validate the sample in the folder; returns the exit status."""
    os.nice(NICE)
    suite, folder = Path(arguments[0]), Path(arguments[1])
    try:
        with pa.memory_map(str(folder / SAMPLE)) as source:
            outcome, page = validate(pa.ipc.open_file(source).read_all(), suite)
    except TidemarkError as error:
        print(" ".join(str(error).split()), file=sys.stderr)  # noqa: T201 - what the service logs
        return error.status
    (folder / OUTCOME).write_text(json.dumps(outcome), encoding="utf-8")
    (folder / PAGE).write_text(page, encoding="utf-8")
    return 0


def validate(table: pa.Table, suite: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the `label` of each expectation, whether it is `met` and the `text` of its failure; and the report.

    Raises SchemaError when the file cannot be used.
    """
    remedy = "Name the file in [quality] expectations; `tidemark profile` writes one"
    validation = expectations.evaluate(table.to_pandas(), suite, asset="sample", remedy=remedy)
    results = sorted(validation.results, key=_order)  # Great Expectations' order may change
    named = labels([(each.expectation_config.type, each.expectation_config.kwargs) for each in results])
    outcome = []
    for label, each in zip(named, results, strict=True):
        failed = expectations.is_failure(each)
        outcome.append({"label": label, "met": not failed, "text": expectations.described(each) if failed else ""})
    validation.meta["run_id"] = {
        "run_name": f"a sample of {table.num_rows} records",
        "run_time": datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat(),
    }
    return outcome, rendered(validation)


def _order(result: Any) -> tuple[str, str]:
    configuration = result.expectation_config
    return configuration.type, json.dumps(configuration.kwargs, sort_keys=True, default=str)


def labels(items: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return a short name for each (type, kwargs), such as "temperature mean between"; equal names get numbers."""
    seen: Counter[str] = Counter()
    named = []
    for kind, kwargs in items:
        words = [word for word in kind.split("_") if word not in _SILENT]
        name = " ".join([*([str(kwargs["column"])] if "column" in kwargs else []), *words])
        seen[name] += 1
        named.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return named


def rendered(validation: Any) -> str:
    """Return Great Expectations' page of a validation, without what it would fetch from the network."""
    renderer = importlib.import_module("great_expectations.render.renderer")
    view = importlib.import_module("great_expectations.render.view")
    for each in validation.results:
        if hasattr(observed := each.result.get("observed_value"), "item"):
            each.result["observed_value"] = observed.item()  # the renderer (1.24.1) accepts no NumPy number
        each.result = escaped(each.result)  # the renderer does not escape texts of devices
    document = renderer.ValidationResultsPageRenderer().render(validation)
    page: str = view.DefaultJinjaPageView().render(document)
    return _PICTURE.sub("none", _HANDLER.sub("", _FOREIGN.sub("", page))).replace("</head>", f"{STYLE}</head>", 1)


def escaped(value: Any) -> Any:
    """Escape all texts of a document for HTML."""
    if isinstance(value, str):
        return html.escape(value)
    if isinstance(value, dict):
        return {key: escaped(each) for key, each in value.items()}
    return [escaped(each) for each in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

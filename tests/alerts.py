"""Alert rules against texts of /metrics: Prometheus' own promtool says which of them fire.

Where promtool is not installed (Debian's package `prometheus` has it), only this is judged: each selector of the rules that
should fire selects a sample of the last text, so a rule that asks for a metric or a label that is not there still fails.
"""

import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

FILE = Path(__file__).resolve().parents[1] / "deploy" / "alerts.yml"
RULES = {rule["alert"]: rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]}

Labels = tuple[tuple[str, str], ...]
_SELECTOR = re.compile(r"(tidemark_\w+)?(\{[^}]*\})?")
_MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')


def samples(text: str) -> dict[tuple[str, Labels], float]:
    """Each sample of a text by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def check(texts: Mapping[str, Sequence[str | None]], expected: Collection[str], folder: Path) -> None:
    """`texts` are what each instance ("job/instance") said, minute by minute, None for no answer. After the last of them exactly
    `expected` fire, each as "job alert"."""
    promtool = shutil.which("promtool")
    if promtool is None:
        for each in expected:
            job, _, alert = each.partition(" ")
            given = [answers for name, answers in texts.items() if name.startswith(job)]
            last = [next((text for text in reversed(answers) if text), "") for answers in given]
            if alert != "TidemarkAbsent":
                assert_selects(RULES[alert]["expr"], last)
        return
    minutes = max(map(len, texts.values()))
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [
            series for name, answers in texts.items() for series in (_up(name, answers), *_series(name, answers))
        ],
        "promql_expr_test": [
            {
                "expr": 'group by (job, alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minutes - 1}m",
                "exp_samples": [
                    {"labels": '{{job="{}", alertname="{}"}}'.format(*each.split(" ")), "value": 1} for each in expected
                ],
            }
        ],
    }
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": [test]}))
    completed = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def assert_selects(expr: str, texts: Sequence[str]) -> None:
    """Each selector of an expression selects something of what the instances said: one that waits may not have it."""
    series = [key for text in texts for key in samples(text)]
    for name, matchers in _SELECTOR.findall(expr):
        if not name and "__name__" not in matchers:
            continue
        wanted = _MATCHER.findall(matchers)
        assert any(
            name in {"", sample} and all(_matches({**dict(labels), "__name__": sample}, each) for each in wanted)
            for sample, labels in series
        ), f"{name}{matchers} selects nothing"


def _matches(labels: Mapping[str, str], matcher: tuple[str, str, str]) -> bool:
    label, how, value = matcher
    actual = labels.get(label, "")
    return actual == value if how == "=" else re.fullmatch(value, actual) is not None


def _series(name: str, answers: Sequence[str | None]) -> list[dict[str, str]]:
    job, _, instance = name.rpartition("/")
    known = [samples(text) if text is not None else {} for text in answers]
    keys = dict.fromkeys(key for each in known for key in each)
    return [
        {
            "series": f"{metric}{{{_shown((*labels, ('job', job), ('instance', instance)))}}}",
            "values": " ".join(_value(each.get((metric, labels))) for each in known),
        }
        for metric, labels in keys
    ]


def _up(name: str, answers: Sequence[str | None]) -> dict[str, str]:
    """What Prometheus itself notes about a target."""
    job, _, instance = name.rpartition("/")
    values = " ".join("0" if answer is None else "1" for answer in answers)
    return {"series": f"up{{{_shown((('job', job), ('instance', instance)))}}}", "values": values}


def _shown(labels: Labels) -> str:
    return ", ".join(f'{name}="{value}"' for name, value in labels)


def _value(value: float | None) -> str:
    if value is None:
        return "_"
    return {"inf": "Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), f"{value:f}")

"""Prometheus and Alertmanager as child processes on loopback, with the configurations that the caller gives."""

import json
import shutil
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from load.servers.server_process import ServerProcess
from load.servers.web import answer
from service.errors import SetupError

_ANSWER_S = 10.0


def program(*names: str) -> str:
    """Return the path of the first of these programs that is on the PATH. Raises SetupError."""
    for name in names:
        if found := shutil.which(name):
            return found
    what = f"{names[0]} is not on the PATH"
    remedy = "On Debian: apt-get install prometheus prometheus-alertmanager. Elsewhere: the archives of prometheus.io/download."
    raise SetupError(what, remedy=remedy)


class _Monitor(ServerProcess):
    """A program with files of configuration, of which the first one is its own."""

    def __init__(
        self, folder: Path | str, program: str, files: Mapping[str, Mapping[str, Any]], options: Mapping[str, str]
    ) -> None:
        super().__init__(folder)
        self._program, self._files = program, files
        own = {"config.file": str(self.folder / next(iter(files))), "web.listen-address": self.address}
        self._options = {**own, "log.level": "warn", **options}

    def _prepare(self) -> None:
        for name, content in self._files.items():
            (self.folder / name).write_text(yaml.safe_dump(content, sort_keys=False))

    def _command(self) -> Sequence[str]:
        return [self._program, *(f"--{name}={value}" for name, value in self._options.items())]

    def _answers(self) -> bool:
        return answer(f"http://{self.address}/-/ready", 1.0)[0] == 200


class Prometheus(_Monitor):
    """A Prometheus with this configuration; `rules` are the content of its rule file `alerts.yml`."""

    name = "prometheus"

    def __init__(self, folder: Path | str, config: Mapping[str, Any], rules: Mapping[str, Any]) -> None:
        files = {"prometheus.yml": config, "alerts.yml": rules}
        super().__init__(folder, program("prometheus"), files, {"storage.tsdb.path": "data"})

    def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the value of each sample of an instant query. Raises SetupError when Prometheus refuses it."""
        result = self._get("query", query=expr)
        if result["resultType"] == "scalar":
            return [({}, float(result["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in result["result"]]

    def firing(self) -> set[tuple[str, str]]:
        """Return the job and the name of each alert that fires."""
        alerts = self._get("alerts")["alerts"]
        return {
            (each["labels"].get("job", ""), each["labels"]["alertname"]) for each in alerts if each["state"] == "firing"
        }

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        status, text = answer(url, _ANSWER_S)
        if not status:
            raise SetupError(f"Prometheus on {self.address} did not answer {path}")
        if status != 200:
            raise SetupError(f"Prometheus refused {path} {parameters}: {text}")
        return json.loads(text)["data"]


class Alertmanager(_Monitor):
    """An Alertmanager with this configuration and no peers."""

    name = "alertmanager"

    def __init__(self, folder: Path | str, config: Mapping[str, Any]) -> None:
        options = {"storage.path": "data", "cluster.listen-address": ""}
        super().__init__(
            folder, program("alertmanager", "prometheus-alertmanager"), {"alertmanager.yml": config}, options
        )

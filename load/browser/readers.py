"""Ten open pages without a browser, whose own work would be on a reader's machine: connections that read the events."""

import threading
import urllib.request
from typing import Any, Self

PAGES = (
    "fleet",
    "fleet?by=site",
    "view?name=type",
    "view?name=site",
    "view?name=all",
    "key?name=site&key=leeds&measure=temperature",
    "key?name=type&key=pump&measure=temperature",
    "pipeline",
    "views",
)


class Readers:
    """Reads the events of PAGES and of one device until the end of the block; `events` counts what came."""

    def __init__(self, url: str, device: str) -> None:
        self.events = 0
        self._urls = [f"{url}/events/{page}" for page in (*PAGES, f"device?id={device}")]
        self._answers: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._is_over = False

    def __enter__(self) -> Self:
        for url in self._urls:
            answer = urllib.request.urlopen(url, timeout=60)  # noqa: S310 - the dashboard on loopback
            thread = threading.Thread(target=self._read, args=(answer,), daemon=True)
            self._answers.append(answer)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True  # each reader ends with its next event, a beat after 5 s at the latest
        for thread in self._threads:
            thread.join(60)

    def _read(self, answer: Any) -> None:
        with answer:
            for line in answer:
                self.events += line.startswith(b"data:")
                if self._is_over:
                    return

"""The parts of a run, what the steps have in common, and what they have found."""

import contextlib
import re
import shlex
import time
import urllib.parse
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from playwright.sync_api import Page

from load.browser import hostile
from load.browser.chromium import Chromium, find
from load.browser.comparison import PREFIX, Rows
from load.browser.redis_history import RedisHistory
from load.fleet.fleet import MEASURES, Fleet, FleetSettings
from load.servers.dashboard import Dashboard
from load.servers.server_process import HOST, PATIENCE, until
from load.testbed import POLL_S, ROOT, Testbed
from service.errors import TidemarkError

FOLDER = ROOT / ".build" / "browser"
UNITS = {"temperature": "\u00b0C", "humidity": "%", "power": "W", "vibration": "mm/s"}
VIEWS: tuple[Mapping[str, Any], ...] = (
    {"name": "device", "by": ["device"], "window": "1 m", "retain": "1 d"},
    {"name": "type", "by": ["type"], "window": "10 s", "retain": "1 d"},
    {"name": "site", "by": ["site"], "window": "1 m", "slide": "10 s", "retain": "1 d"},
    {"name": "model", "by": ["model"], "window": "1 m", "retain": "1 d"},
    {"name": "all", "window": "10 s", "retain": "1 d"},
    {"name": "tail", "by": ["type"], "window": "10 s", "retain": "1 d", "statistics": ["count", "last", "p99", "rate"]},
)
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "input": {"measures": {name: name for name in MEASURES}},
    "admission": {"max_delay": "8 s", "max_ahead": "5 s", "unknown_device": "reject"},
    "sessions": {"gap": "60 s", "max_duration": "1 h", "retain": "1 d"},
    "redis": {"feed_length": 200_000},
}
LOOKS = 6
"""A value is a difference when so many looks in turn have found one that Redis has not held."""
LOOK_S = 0.4 * PATIENCE
SHORTLY_S = 20.0 * PATIENCE
"""Within that a page must follow an event."""
PICTURE_BYTES = 200_000


class StepError(TidemarkError):
    """A page that does not do what a step expects of it."""

    code = "BROWSER"


class Stage:
    """The service under load, its page and Chromium, from the beginning of a `with` block to its end."""

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.began = time.monotonic()
        self.differences: list[str] = []
        self.values = 0
        self.active: list[str] = []
        self.pictures: list[str] = []
        self.figures: dict[str, float] = {}
        self._stack = contextlib.ExitStack()
        path = find()
        self.testbed = Testbed(
            FOLDER,
            Fleet(args.seed, FleetSettings(devices=args.devices, rate=args.rate)),
            views=VIEWS,
            sections=SECTIONS,
        )
        units = [text for name, unit in UNITS.items() for text in ("--unit", f"{name}={unit}")]
        service = f"http://{HOST}:{self.testbed.metrics_port}"
        options = [*units, "--rejects", shlex.join(self.testbed.command("rejects", "list"))]
        self.dashboard = Dashboard(FOLDER, self.testbed.redis.url, service, options)
        self.chromium = Chromium(self.dashboard.url, args.axe, path)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            testbed = stack.enter_context(self.testbed)
            hostile.add_devices(testbed)
            testbed.start_service()
            testbed.wait(lambda: testbed.metrics().get("tidemark_query_running"), 120, "the query to start")
            generator = testbed.start_generator(self.args.rate)
            stack.callback(testbed.end_generator, generator)
            stack.enter_context(self.dashboard)
            stack.enter_context(self.chromium)
            self.client = stack.enter_context(testbed.redis_client())
            own = stack.enter_context(testbed.redis_client())
            self.history = stack.enter_context(RedisHistory(own, [f"{PREFIX}:progress"]))
            self.version = self.chromium.version
            self.say(f"page {self.dashboard.url}, Chromium {self.version}, all files in {FOLDER}")
            self.wait_for_fleet()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # Addresses.

    @property
    def device(self) -> str:
        """The device whose page is looked at; it has two measures."""
        return next(name for name in self.testbed.fleet.names if name.startswith("pump"))

    @property
    def paths(self) -> dict[str, str]:
        """A page of each kind."""
        return {
            "fleet": "/",
            "warmest": "/?sort=-m.temperature&status=online",
            "views": "/views",
            "view": "/view?name=site&measure=temperature",
            "key": "/key?name=site&key=leeds&measure=power",
            "statistic": "/key?name=tail&key=pump&measure=temperature&stat=p99&span=600000",
            "device": f"/device?id={self.device}",
            "pipeline": "/pipeline",
            "runbook": "/runbook",
            "alert": "/runbook/TidemarkStuck",
        }

    def fetch(self, path: str, **words: str) -> str:
        """Return the text of an address of the dashboard. Raises OSError."""
        query = f"?{urllib.parse.urlencode(words)}" if words else ""
        with urllib.request.urlopen(self.dashboard.url + path + query, timeout=60) as answer:  # noqa: S310 - on loopback
            text: str = answer.read().decode()
            return text

    # Waiting.

    def until(self, condition: Callable[[], Any], what: str, within_s: float = SHORTLY_S) -> None:
        """Ask until the answer is true. Raises SetupError when it is not within the time."""
        until(condition, within_s, what, every_s=POLL_S)

    def wait_for_fleet(self) -> None:
        """Return when most of the devices have sent, and the page has counted them."""
        wanted = 0.9 * self.args.devices

        def is_counted() -> bool:
            try:
                text = self.fetch("/")
            except OSError:  # 503 before the first batch
                return False
            shown = re.search(r'class="big">([\d,]+)<', text)
            return "Still counting" not in text and shown is not None and int(shown[1].replace(",", "")) >= wanted

        self.testbed.wait(is_counted, 240, "the page to have counted the fleet")

    # Comparing.

    def compare(self, name: str, page: Page, rows: Callable[[], Rows]) -> None:
        """Look at a page until Redis has held each of its rows, or has not held one in LOOKS looks in turn."""
        missed: dict[str, int] = {}
        compared: set[str] = set()
        for _ in range(5 * LOOKS):
            found = rows()
            require(bool(found), f"{name}: the page {page.url} has no values")
            self.history.add(found)
            is_over = True
            for key, compare in found.items():
                unlike = [list(compare(held)) for held in self.history.versions(key)]
                if not all(unlike):
                    compared.add(key)
                    missed.pop(key, None)
                    continue
                missed[key] = missed.get(key, 0) + 1
                is_over = is_over and missed[key] >= LOOKS
                if missed[key] == LOOKS:
                    least = min(unlike, key=len)
                    self.note(f"{name}, {key}", least)
            if is_over:
                break
            page.wait_for_timeout(1000 * LOOK_S)
        self.values += len(compared)

    def note(self, name: str, found: Iterable[str]) -> None:
        self.differences += [f"{name}: {each}" for each in found]

    # Showing.

    def picture(self, page: Page, name: str) -> None:
        """Keep a picture of what the window shows."""
        path = Path(self.args.pictures) / f"page-{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=path)
        size = path.stat().st_size
        require(size < PICTURE_BYTES, f"{path} has {size} bytes, and may have {PICTURE_BYTES}")
        self.pictures.append(path.name)

    @contextlib.contextmanager
    def without(self, status: int) -> Iterator[None]:
        """Leave out this status of an answer, which a step expects and Chromium writes to the console."""
        errors = self.chromium.troubles.console_errors
        known = len(errors)
        yield
        errors[known:] = [each for each in errors[known:] if f"status of {status}" not in each]

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)


def require(condition: bool, what: str) -> None:
    """Raise StepError unless the condition holds."""
    if not condition:
        raise StepError(what)


def not_reloaded(page: Page) -> None:
    """Raise StepError when a page was loaded again since it was opened."""
    require(bool(page.evaluate("window.notReloaded")), f"the page {page.url} was loaded again")

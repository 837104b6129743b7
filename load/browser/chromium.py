"""Chromium, and everything that goes wrong in its pages: errors, requests to elsewhere, code that runs, violations of WCAG."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Playwright, Request, sync_playwright

from service.errors import SetupError

OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""`--no-sandbox` because Chromium refuses to run as root with it. The pages are our own."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
"""Groups of axe-core's rules."""
WIDTHS: Mapping[str, tuple[int, int]] = {"phone": (360, 740), "laptop": (1280, 800), "wide": (1920, 1080)}
ZONE = "Europe/Copenhagen"
"""The reader's zone: not UTC, so that a time in the wrong zone is seen."""

Scheme = Literal["light", "dark"]

_VIOLATIONS = """async (rules) => (await axe.run(document, {runOnly: rules})).violations.map(
  each => `${each.id} (${each.impact}): ${each.nodes.map(node => node.html.slice(0, 120)).join(' | ')}`)"""


def find() -> str:
    """Return the path of Chromium. Raises SetupError."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    what = f"None of {', '.join(NAMES)} is on the PATH"
    raise SetupError(what, remedy="Install Chromium, on Debian: apt-get install chromium fonts-dejavu-core.")


@dataclass
class Troubles:
    """Errors in the pages of a run, one line each."""

    console_errors: list[str] = field(default_factory=list)
    foreign_requests: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    executions: list[str] = field(default_factory=list)
    is_away: bool = False
    """Whether the dashboard is down on purpose: Chromium reports each failed request as an error."""


class Chromium:
    """One browser; `open` gives pages whose troubles are noted. `axe` is the script of axe-core."""

    def __init__(self, origin: str, axe: Path, path: str) -> None:
        self.origin = origin
        self.troubles = Troubles()
        self._axe = axe.read_text(encoding="utf-8")
        self._path = path
        self._stack = contextlib.ExitStack()
        self._browser: Browser | None = None

    def __enter__(self) -> "Chromium":
        playwright: Playwright = self._stack.enter_context(sync_playwright())
        # Playwright gives the browser a new, empty user-data-dir and deletes it afterwards.
        self._browser = playwright.chromium.launch(executable_path=self._path, args=list(OPTIONS))
        self._stack.callback(self._browser.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def version(self) -> str:
        assert self._browser is not None, "the browser is not started"  # noqa: S101
        return self._browser.version

    @contextlib.contextmanager
    def open(self, path: str, width: str = "laptop", scheme: Scheme = "light") -> Iterator[Page]:
        """Open a path of the dashboard in a context of its own, without a cache; the page is closed at the end of the block."""
        assert self._browser is not None, "the browser is not started"  # noqa: S101
        wide, high = WIDTHS[width]
        context = self._browser.new_context(
            viewport={"width": wide, "height": high},
            color_scheme=scheme,
            timezone_id=ZONE,
            locale="en-GB",
            has_touch=width == "phone",
        )
        try:
            page = context.new_page()
            self._watch(page, path)
            page.goto(self.origin + path)
            page.evaluate("window.notReloaded = true")
            yield page
        finally:
            context.close()

    @contextlib.contextmanager
    def at(self, origin: str) -> Iterator[None]:
        """Open the pages of another dashboard during the block."""
        former, self.origin = self.origin, origin
        try:
            yield
        finally:
            self.origin = former

    def judge(self, page: Page, name: str) -> None:
        """Note the violations of accessibility, and a page that is wider than the window."""
        page.evaluate(self._axe)
        violations: list[str] = page.evaluate(_VIOLATIONS, list(RULES))
        if (over := page.evaluate("document.documentElement.scrollWidth - innerWidth")) > 0:
            violations.append(f"wider than the window by {over} px")
        self.troubles.violations += [f"{name}: {each}" for each in violations]

    def _watch(self, page: Page, name: str) -> None:
        troubles = self.troubles

        def console(message: Any) -> None:
            is_refused = troubles.is_away and "net::ERR_" in message.text
            if message.type in {"error", "warning"} and not is_refused:
                troubles.console_errors.append(f"{name}: {message.text}")

        def request(sent: Request) -> None:
            at = urlsplit(sent.url)
            if f"{at.scheme}://{at.netloc}" != self.origin:
                troubles.foreign_requests.append(f"{name}: {sent.url}")

        def dialog(shown: Any) -> None:
            troubles.executions.append(f"{name}: {shown.type} {shown.message}")
            shown.dismiss()

        page.on("console", console)
        page.on("pageerror", lambda error: troubles.console_errors.append(f"{name}: {error}"))
        page.on("request", request)
        page.on("dialog", dialog)

"""Builds the documentation site.

    python -m load.site [--folder .build/site] [--mermaid FILE]

The site needs no other host: fonts are the reader's, and Mermaid is the given file. A broken link is an error.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from load.site import contract_page, pages, settings_page
from service.spark.places import ROOT

CONFIG = Path(__file__).parent / "mkdocs.yml"
CLIENT = """# Client API

Generated from the sources of `tidemark-client`. [Its page](../../clients/python/README.md) has examples.

::: tidemark_client
"""


def stage(root: Path, folder: Path) -> Path:
    """Write all pages and the configuration of MkDocs below `folder`, and return the configuration."""
    shutil.rmtree(folder / "pages", ignore_errors=True)
    target = folder / "pages"
    pages.copy_pages(root, target)
    generated = {"settings.md": settings_page.page(), "keys.md": contract_page.page(root), "client.md": CLIENT}
    (target / "docs" / "reference").mkdir(parents=True)
    for name, text in generated.items():
        (target / "docs" / "reference" / name).write_text(text)
    shutil.copytree(Path(__file__).parent / "assets", target / "assets")
    config = folder / "mkdocs.yml"
    config.write_text(configuration(root, CONFIG.read_text()))
    return config


def configuration(root: Path, template: str) -> str:
    """Return the template with the repository's folder, and with a line of navigation for each decision."""
    decisions = sorted(each.name for each in (root / "docs" / "decisions").glob("0*.md"))
    line = re.compile(r"^( *)- DECISIONS\n", re.MULTILINE)
    lines = line.sub(lambda match: "".join(f"{match[1]}- docs/decisions/{name}\n" for name in decisions), template)
    return lines.replace("ROOT", str(root))


def build(config: Path) -> int:
    """Run MkDocs, print its warnings and errors, and return its exit status: 1 if there is a warning."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, check=False, env=environment, stderr=subprocess.PIPE, text=True)
    print("\n".join(line for line in done.stderr.splitlines() if not line.startswith("INFO")), file=sys.stderr)
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m load.site", description="Build the documentation site.")
    parser.add_argument("--folder", type=Path, default=ROOT / ".build" / "site")
    parser.add_argument("--mermaid", type=Path, help="mermaid.min.js; without it diagrams are shown as text")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    config = stage(ROOT, arguments.folder)
    if arguments.mermaid is not None:
        shutil.copy(arguments.mermaid, arguments.folder / "pages" / "assets" / "mermaid.js")
    status = build(config)
    if status == 0:
        print(f"{arguments.folder / 'html' / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())

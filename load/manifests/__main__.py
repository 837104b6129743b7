"""Write the generated files below deploy/, then render and check all of them.

    python -m load.manifests

Exit status: 0 if every document is valid, 1 if one is not.
"""

import sys
from collections.abc import Iterator

from load.manifests import chart, example, rules
from load.manifests.render import FOLDER, OVERLAYS, render
from load.manifests.schemas import problems
from load.report import judged


def found() -> Iterator[str]:
    """Write the files, print how many documents each overlay has, and yield the problems of these. Raises SetupError."""
    for file, text in (rules.texts() | example.texts() | chart.texts()).items():
        file.write_text(text, encoding="utf-8")
    for name in OVERLAYS:
        documents = render(FOLDER / "overlays" / name)
        yield from (f"{name}: {problem}" for document in documents for problem in problems(document))
        print(f"{name}: {len(documents)} documents")


if __name__ == "__main__":
    sys.exit(judged(found, "all of them are valid"))

"""Write the generated files below deploy/, then render and check all of them.

    python -m load.manifests

Exit status: 0 if every document is valid, 1 if one is not.
"""

import sys

from load.manifests import chart, example, rules
from load.manifests.render import FOLDER, OVERLAYS, render
from load.manifests.schemas import problems
from load.report import print_error
from service.errors import TidemarkError


def main() -> int:
    for file, text in (rules.texts() | example.texts() | chart.texts()).items():
        file.write_text(text, encoding="utf-8")
    found: list[str] = []
    try:
        for name in OVERLAYS:
            documents = render(FOLDER / "overlays" / name)
            found += [f"{name}: {problem}" for document in documents for problem in problems(document)]
            print(f"{name}: {len(documents)} documents")
    except TidemarkError as error:
        return print_error(error)
    print("\n".join(found) or "all of them are valid")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

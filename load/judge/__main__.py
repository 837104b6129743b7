"""python -m load.judge --config tidemark.toml [--json FILE]"""

import sys

from load.judge.compare import main

sys.exit(main())

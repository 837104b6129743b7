"""python -m load.comparer --config tidemark.toml [--json FILE]"""

import sys

from load.comparer.compare import main

sys.exit(main())

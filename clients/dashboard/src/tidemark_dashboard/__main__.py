"""`python -m tidemark_dashboard` is `tidemark-dashboard`."""

import sys

from tidemark_dashboard.command import main

sys.exit(main())

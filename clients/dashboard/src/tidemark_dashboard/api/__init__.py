"""The HTTP API: the same answers as tidemark-client gives, as JSON, for languages without a client.

`resources` has what may be asked, `parameters` what a request may give, `documents` how values are written, `problems` errors.
`openapi` writes the document of all of them, `routes` serves them.
"""

BASE = "/api/v1"
EVENTS = f"{BASE}/events"

"""`python -m service.cli` is `tidemark`."""

from service.cli.entry import program

program()

"""The command line: `tidemark COMMAND`; `tidemark --help` lists the commands.

The exit status is 0, or that of the error's family in service/errors.py, and 2 for a wrong command line. Modules here import a
command only when it runs: `tidemark --help` loads no Spark, no client library and no settings.
"""

from service.cli.entry import daemon as daemon
from service.cli.entry import main as main
from service.cli.entry import program as program

"""Commands: what an operator asks for beside the daemon, one module a command; `service/cli.py` reads their arguments."""

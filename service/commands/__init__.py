"""Commands of an operator, in addition to the daemon, one module each; `service/cli` reads their arguments."""

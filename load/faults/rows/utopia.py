"""U: nothing goes wrong. What every other row is compared with, and a proof that the rules do not cry wolf."""

from load.faults.row import row
from load.faults.run import Figures, Run


@row("U", "no fault", rate=5_000, devices=5_000)
def utopia(run: Run) -> Figures:
    """A minute and a half; half a minute when short."""
    run.begin()
    run.run_on(30 if run.short else 90)
    return {}

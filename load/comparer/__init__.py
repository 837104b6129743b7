"""Everything in Redis and in the rejects topics against the oracle, difference by difference."""

from load.comparer.compare import compare as compare
from load.comparer.verdict import Verdict as Verdict

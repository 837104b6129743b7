"""A report of a batch, as the query gives it to metrics and status."""

from service.admission.readings import REASONS
from service.micro_batch import MicroBatch
from service.pipeline.batch import BatchReport
from service.pipeline.outcome import LATENCY_BOUNDS_MS, Outcome

CUT = MicroBatch(epoch=3, batch=7, watermark_ms=1_700_000_000_500, start={"r": {0: 10}}, end={"r": {0: 15, 1: 4}})
LATENCY = (0, 2, 1, *[0] * (len(LATENCY_BOUNDS_MS) - 4), 4)
REPORT = BatchReport(
    micro_batch=CUT,
    outcome=Outcome(
        rejects=2,
        admitted=7,
        rejected=tuple(2 * (name == "late") for name in REASONS),
        unknown=1,
        windows=5,
        written=4,
        refused_old=1,
        latency=(*LATENCY, 1),
        latency_ms=90_070,
        sizes=((0, 9, 2, 1, 500, 50, 20), (1, 7, 3, 0, 300, 300, 40)),
    ),
    phases={"run": 0.25, "publish": 0.01},
    limit=100,
    next_limit=200,
)

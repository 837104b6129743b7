"""Random walks through the past on real parts: a broker, a local Spark, a Redis and an outlet of Parquet files.

    plain.py      what must be there: one pass over all records, by the decisions about each of them
    parts.py      the service and its commands, as the walk uses them: the one module that knows their names
    walk.py       the steps, drawn from a seed, and what is compared after each
    __main__.py   `make walks REAL=1`

load/walks walks behind decoding, without Spark, and has none of these: `rejects replay`, `correct`, `backfill`, republications,
moves between sites, devices that leave the reference, ranges that change, a new checkpoint, files of an outlet.
"""

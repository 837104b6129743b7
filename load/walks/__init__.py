"""Random walks through the service behind decoding, compared with plain lists after each step. No Spark: half a second each.

    plain.py      what must be there, from single readings
    world.py      the service: fold, operator, state store, publish, an outlet and silence, on a real Redis
    past.py       the past of new versions of views, by the steps of service/recompute/fill.py
    outlet.py     the outlet, in memory
    machine.py    the steps, and what is compared
    __main__.py   `make walks`

Records of one topic are readings or arrays of readings, by then a row for each reading with its index.

What Spark and Kafka decide is not walked. Poison comes as rows that admission has rejected, and rejects are taken before they go
to Kafka. Early readings and unknown devices are in tests/stream, damaged files of a checkpoint in tests/stream/test_checkpoint.py
(here entries of the state are damaged), and what a Redis gets back that has lost its data in tests/integration/test_republish.py
(here it refuses what is written). Readers beside the writer (P3) are in tests/integration/test_publish.py.
"""

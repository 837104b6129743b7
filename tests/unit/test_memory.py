"""Freed memory goes back to the system, when a process has grown and only then."""

import json
import subprocess
import sys

import pytest

from load.testbed import ROOT

PROGRAM = """
import gc, json, sys
import numpy as np
from service.spark import memory

def grow(blocks):
    made = [np.ones(8_000) for _ in range(blocks)]  # small enough for the heap, whose end the last one keeps
    return made[-1]

kept = [grow(4_000)]
grown = memory.resident_bytes()
if sys.argv[1] == "collect":
    gc.callbacks.append(memory.settle_after_collection)
    gc.collect(1)
    assert memory.resident_bytes() > 0.9 * grown, "a partial collection gives nothing back"
    gc.collect()
else:
    memory.settle()
settled = memory.resident_bytes()
kept.append(grow(1_000))
memory.settle()
print(json.dumps([grown, settled, memory.resident_bytes()]))
"""


@pytest.mark.parametrize("way", ["settle", "collect"])
def test_memory_that_is_freed_is_given_back_when_the_process_has_grown(way: str) -> None:
    command = [sys.executable, "-c", PROGRAM, way]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    grown, settled, small = json.loads(done.stdout)
    assert grown - settled > 200 << 20
    assert small - settled > 40 << 20, "64 MB are below the limit and stay"


CYCLES = """
import gc, sys, weakref
from service.spark import memory

class Java:
    def __init__(self):
        self.methods = {"plan": [self]}  # as a JavaObject and its JavaMember

long_living = [[number] for number in range(500_000)]  # of imports
gc.collect()
if sys.argv[1] == "soon":
    memory.collect_soon()

def batch():
    frame = Java()
    gc.collect(1)
    gc.collect(1)  # it lives through two young collections
    return weakref.ref(frame)

there = batch()
for number in range(300):  # what a process does meanwhile
    some = [[each] for each in range(1_000)]
print(there() is None)
"""


@pytest.mark.parametrize(("way", "is_collected"), [("soon", "True"), ("as before", "False")])
def test_what_a_batch_has_left_is_collected_soon_although_the_process_has_many_objects(
    way: str, is_collected: str
) -> None:
    command = [sys.executable, "-c", CYCLES, way]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == is_collected, done.stderr

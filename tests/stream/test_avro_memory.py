"""What a batch has read with must go with it: a service reads a batch a second, for months."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro

from service.spark.java import java

pytestmark = pytest.mark.spark

_SCHEMA = json.dumps({"type": "record", "name": "Reading", "fields": [{"name": "value", "type": "int"}]})
BATCHES = 40


def instances(spark: SparkSession, name: str) -> int:
    """How many objects of a class the JVM holds after a full collection."""
    jvm: Any = spark.sparkContext._jvm  # pyspark has no public way to the JVM
    command = [Path(java()).resolve().with_name("jcmd"), str(jvm.ProcessHandle.current().pid()), "GC.class_histogram"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(int(words[1]) for words in map(str.split, lines) if len(words) > 3 and words[3] == name)


@pytest.mark.thorough
def test_readers_of_avro_go_with_their_batch(spark: SparkSession) -> None:
    # Avro 1.12 keeps a fast reader of each parsed schema for good (AVRO-4253), 60 KB a batch of four tasks.
    def read() -> None:
        values = spark.createDataFrame([(b"\2",)], "value binary")
        assert values.select(from_avro("value", _SCHEMA).alias("reading")).first() == ((1,),)

    read()
    before = instances(spark, "org.apache.avro.Schema$RecordSchema")
    for _ in range(BATCHES):
        read()
    assert instances(spark, "org.apache.avro.Schema$RecordSchema") < before + BATCHES / 2

"""What Tidemark takes from Spark that Spark does not promise: the files of a checkpoint, private fields, objects of the JVM.

No module outside of this package reads or edits Spark's files, or uses a private field of PySpark. An upgrade of Spark checks
tests/unit/test_spark_internals.py, which looks for such uses, and tests/integration/test_spark_internals.py, which runs on the
installed Spark (4.1.4).
"""

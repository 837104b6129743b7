"""deploy/pod starts what Spark on Kubernetes runs in a pod. There is no Kubernetes here: the tests pass what Spark passes."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from load.servers.child_process import spawn
from load.servers.kafka import Broker
from load.servers.redis import Redis
from load.servers.server_process import free_port
from service.spark.places import DEPLOY
from tests.integration.daemon import STARTS_S, DaemonWorld, Service, until

pytestmark = pytest.mark.integration


class Driver(Service):
    """The driver's pod: arguments and variables are those that DriverCommandFeatureStep gives it (Spark 4.1.1)."""

    def __init__(self, config: Path, port: int, log: Path, properties: Mapping[str, str]) -> None:
        self.port, self.log = port, log
        file = log.with_suffix(".properties")
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        command = [str(DEPLOY / "pod"), "driver", "--properties-file", str(file)]
        command += ["--class", "org.apache.spark.deploy.PythonRunner", f"local://{DEPLOY / 'daemon.py'}"]
        variables = {"SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1", "SPARK_CONF_DIR": str(log.parent)}
        self.process = spawn(
            [*command, "--config", str(config)],
            cwd=log.parent,
            log=log,
            environ={**os.environ, **variables, "TIDEMARK_METRICS__PORT": str(port)},
        )


@pytest.mark.thorough
def test_a_driver_has_the_settings_of_the_image_and_those_of_its_application_take_precedence(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str
) -> None:
    topic = f"pod-{prefix}"
    broker_server.create_topic(topic, partitions=2)
    world = DaemonWorld(broker_server, redis_server, tmp_path, topic)
    world.send(100)
    # spark-defaults.conf has the options of the JVM, the application the number of partitions.
    properties = {"spark.master": "local[2]", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "1"}
    with Driver(world.config, free_port(), tmp_path / "driver.log", properties) as driver:
        until(lambda: driver.is_ready() and world.counted() == 100, STARTS_S, "the first batch")
        options = " ".join(driver.tree()[0].cmdline())
        assert "-Dorg.apache.avro.limits.bytes.maxLength=1048576" in options
        assert len(list((tmp_path / "checkpoint" / "state" / "0").glob("[0-9]*"))) == 1
        assert driver.stop() == 0


def test_an_executor_connects_to_the_driver_that_its_pod_names(tmp_path: Path) -> None:
    port = free_port()
    variables = {
        "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "tidemark-exec-1",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "-Dname=two words",
        "SPARK_JAVA_OPT_1": "-XX:+PrintCommandLineFlags",
    }
    command = [DEPLOY / "pod", "executor"]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert f"Connection refused: /127.0.0.1:{port}" in done.stdout + done.stderr
    assert f"MaxHeapSize={512 << 20} " in done.stdout


def test_another_word_than_driver_and_executor_is_a_usage_error() -> None:
    done = subprocess.run([DEPLOY / "pod", "worker"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Usage: deploy/pod driver" in done.stderr

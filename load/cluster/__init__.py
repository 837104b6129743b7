"""The service on several hosts: masters, workers and the network between them fail, and the rules of load/faults judge.

    python -m load.cluster [--only driver_moved] [--seed 7] [--quick] [--json FILE]     needs root and iproute2

A host is a set of Linux namespaces (host.py): it has an address, a name, processes and a /proc of its own, and can be turned
off, or cut off from an address, at any moment. The runner itself runs in namespaces of its own, too (namespaces.py): nothing
leaves them, and nothing of them is left after the run, however it ends.

    zookeeper, Kafka, Redis, generator, oracle      198.18.0.1, the runner's own
    master-1, master-2                              198.18.0.11, .12    deploy/master, leaders by ZooKeeper
    worker-1, worker-2                              198.18.0.21, .22    deploy/worker: the driver and an executor on each

The checkpoint on other stores is played with one host (stores.py): a NameNode and a DataNode of HDFS, and an S3 server.

The folder of a run is on one disk, which all hosts see: it has the checkpoint, as a shared file system would.
"""

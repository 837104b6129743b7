"""Real parts in a folder: Kafka, Redis, PostgreSQL, a schema registry and a Spark cluster as child processes on loopback.

Tests, the demo, the benchmark and the fault runner start the same parts the same way. None of them outlives this
process: the `with` block ends them, else the interpreter's end, else the kernel (see load/servers/child_process.py).

    with Broker(folder) as broker:
        broker.create_topic("readings", partitions=4)
        broker.kill()    # SIGKILL; the data stays
        broker.start()   # on the same data and the same port

A part's port is chosen when it is made, so its address can be handed out before it runs ("down at the start").
A crash of the part's process is survived on its data; a crash of the machine is not promised.
"""

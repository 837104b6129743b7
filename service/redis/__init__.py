"""Redis: clients, names of keys, and a connection that survives what Redis does. What is written: service/publication."""

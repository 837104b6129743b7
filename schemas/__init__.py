"""Contracts with the outside: Avro schemas by id, the reject record, the reference's expectations, the Redis contract."""

"""The folder `schemas` of the checkpoint: `index.json`, and a file for each schema of a registry.

Each of several inputs has a folder below it. With the copies a restart needs the registry for no schema that was decoded before.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from service.admission.registry import record
from service.errors import CheckpointError
from service.micro_batch import Offsets
from service.spark import files
from service.spark.files import RESTORE

FOLDER = "schemas"
INDEX = "index.json"
_SUFFIXES = {"avro": "avsc", "json": "", "json-schema": "jsonschema", "protobuf": "protobuf"}


class Index(BaseModel):
    """The content of `index.json`.

    decided   the newest batch that may have been published while ids were refused, -1 for none
    refused   the ids that it refused, each with the time in ms until which it is refused
    all       it refused all unknown ids
    since     every decoded id; its value is the offsets where the query learned the id, {} if it is decoded at every offset
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    decided: int = -1
    refused: Mapping[int, int] = {}
    all: bool = False
    since: Mapping[int, Offsets] = {}

    def refuses(self, schema_id: int, batch: int) -> bool:
        """Whether a batch may have been published without the records of an id: its replay must reject them again."""
        return batch <= self.decided and (self.all or schema_id in self.refused)


class Files(Protocol):
    """The files of a checkpoint: service/spark/files.py."""

    def read(self, name: str) -> bytes: ...

    def replace(self, name: str, content: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class SchemaStore:
    """Reads and writes the schemas of a checkpoint. Its methods raise CheckpointError, and SetupError when the disk is full."""

    files: Files
    folder: str = FOLDER
    format: str = "avro"
    """That of the input."""

    def index(self) -> Index | None:
        """Return the index; None for a new checkpoint, and for one of a version without an index."""
        try:
            return Index.model_validate_json(self.files.read(self._path(INDEX)))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            msg = f"{self.files}/{self._path(INDEX)} is damaged: {' '.join(str(error).split())}"
            raise CheckpointError(msg, remedy=RESTORE) from error

    def schemas(self, index: Index) -> dict[int, dict[str, Any]]:
        """Return the stored schemas of the index, by id."""
        schemas = {}
        for schema_id in index.since:
            name = self._schema(schema_id)
            try:
                schema = json.loads(self.files.read(name))
                schemas[schema_id] = record(schema, f"{self.files}/{name}") if self.format == "avro" else dict(schema)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                msg = f"{self.files}/{name} is damaged: {error}"
                remedy = f"Delete it: the service reads it from the registry again. Or: {RESTORE}"
                raise CheckpointError(msg, remedy=remedy) from error
        return schemas

    def write_index(self, index: Index) -> None:
        self._replace(self._path(INDEX), index.model_dump_json())

    def write_schema(self, schema_id: int, schema: Mapping[str, Any]) -> None:
        self._replace(self._schema(schema_id), json.dumps(schema))

    def _replace(self, name: str, text: str) -> None:
        try:
            self.files.replace(name, text.encode())
        except OSError as error:
            msg = f"{self.files}/{name} cannot be written: {error}"
            raise files.unusable(msg, remedy="Let the service's user write there") from error

    def _schema(self, schema_id: int) -> str:
        return self._path(f"{schema_id}.{_SUFFIXES[self.format]}")

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

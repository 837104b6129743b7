"""The folder `schemas` of the checkpoint: `index.json`, and a file for each schema of a registry.

Each of several inputs has a folder below it. With the copies a restart needs the registry for no schema that was decoded before.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from service.admission.formats import FORMATS
from service.checkpoint.document import Document, damaged, store
from service.micro_batch import Offsets
from service.spark.files import RESTORE, Folder

FOLDER = "schemas"
INDEX = "index.json"


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


DOCUMENT = Document[Index](f"{FOLDER}/{INDEX}", Index)


@dataclass(frozen=True, slots=True)
class SchemaStore:
    """Reads and writes the schemas of a checkpoint. Its methods raise CheckpointError, and SetupError when the disk is full."""

    files: Folder
    folder: str = FOLDER
    format: str = "avro"
    """That of the input."""

    def index(self) -> Index | None:
        """Return the index; None for a new checkpoint, and for one of a version without an index."""
        return DOCUMENT.read(self.files, self._path(INDEX))

    def schemas(self, index: Index) -> dict[int, dict[str, Any]]:
        """Return the stored schemas of the index, by id."""
        schemas = {}
        for schema_id in index.since:
            name = self._schema(schema_id)
            try:
                schema = json.loads(self.files.read(name))
                schemas[schema_id] = FORMATS[self.format].stored(schema, f"{self.files}/{name}")
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                remedy = f"Delete it: the service reads it from the registry again. Or: {RESTORE}"
                raise damaged(self.files, name, error, remedy) from error
        return schemas

    def write_index(self, index: Index) -> None:
        DOCUMENT.write(self.files, index, self._path(INDEX))

    def write_schema(self, schema_id: int, schema: Mapping[str, Any]) -> None:
        store(self.files, self._schema(schema_id), json.dumps(schema).encode(), is_synced=True)

    def _schema(self, schema_id: int) -> str:
        return self._path(f"{schema_id}.{FORMATS[self.format].suffix}")

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

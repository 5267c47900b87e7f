"""What stands in a folder of scores, and how far it is.

    _plan.json            the question: inputs, model, options, number of rows and shards
    _plan/00000.parquet   the rows of each shard, fixed before the first is scored
    part-00000.parquet    the answers of a shard, whole or not there
    _manifest.jsonl       a line per finished shard: shard, rows, failed, bytes, hash
    _SUCCESS              empty; there when every row has come out

The manifest is replaced as a whole every few seconds. A shard that was written after that is
scored again by the next run, into the same bytes, so nothing is lost and nothing is there twice.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

from pydantic import Field, TypeAdapter, ValidationError

from labelwise.errors import CheckpointError
from labelwise.system.storage import Storage

MANIFEST_FILE = "_manifest.jsonl"
SUCCESS_FILE = "_SUCCESS"
Count = Annotated[int, Field(ge=0)]
SECONDS = 3.0  # between two writes of the manifest


@dataclass(frozen=True)
class ShardRecord:
    """A shard that is in its place: its rows, how many of them failed, and its SHA-256."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    shard: str
    rows: Count
    failed: Count
    bytes: Count
    hash: str

    def __post_init__(self) -> None:
        if self.failed > self.rows:
            raise ValueError(f"of {self.rows} rows {self.failed} cannot have failed")


RECORD = TypeAdapter(ShardRecord)


def shard_name(number: int) -> str:
    """Return the file name of a shard.

    >>> shard_name(7)
    'part-00007.parquet'
    """
    return f"part-{number:05d}.parquet"


class Manifest:
    """The finished shards of a folder; :meth:`add` keeps them in ``_manifest.jsonl``."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._records = {record.shard: record for record in _read(storage)}
        self._written = time.monotonic()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def rows(self) -> int:
        """The rows of all finished shards."""
        return sum(record.rows for record in self._records.values())

    @property
    def failed(self) -> int:
        """The rows among them without an answer."""
        return sum(record.failed for record in self._records.values())

    def records(self) -> list[ShardRecord]:
        """Return the finished shards in order."""
        return [self._records[name] for name in sorted(self._records)]

    def missing(self, shards: int) -> Iterator[int]:
        """Yield the numbers of the shards that are not there as the manifest says."""
        for number in range(shards):
            record = self._records.get(shard_name(number))
            if record is None or self._storage.size(record.shard) != record.bytes:
                self._records.pop(shard_name(number), None)
                yield number

    def add(self, record: ShardRecord) -> None:
        """Note a finished shard; it is written within seconds."""
        self._records[record.shard] = record
        if time.monotonic() - self._written >= SECONDS:
            self.write()

    def write(self) -> None:
        """Write the manifest now, in the order of the shards."""
        lines = [json.dumps(asdict(record)) + "\n" for record in self.records()]
        self._storage.write(MANIFEST_FILE, "".join(lines).encode())
        self._written = time.monotonic()


def _read(storage: Storage) -> Iterator[ShardRecord]:
    if storage.size(MANIFEST_FILE) is None:
        return
    for number, line in enumerate(storage.read(MANIFEST_FILE).splitlines(), start=1):
        try:
            yield RECORD.validate_json(line, strict=True)
        except ValidationError:
            raise CheckpointError(
                f"{storage.address}: line {number} of {MANIFEST_FILE} is not a finished shard; "
                "delete the file to score every shard again"
            ) from None

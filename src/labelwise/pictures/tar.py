"""The files of a tar shard: the one walk over them, for labels and for scoring alike.

A picture in a shard is called ``shard.tar/folder/name.jpg``, below the place that the shard is at:
the member's own name, letter for letter, what is not text in it escaped.
"""

import tarfile
from collections.abc import Iterator
from typing import IO, NamedTuple

from labelwise.errors import DataError
from labelwise.system.names import printable


class TarMember(NamedTuple):
    """A regular file of a shard: its name, and where its bytes are."""

    name: str
    offset: int
    size: int


def tar_members(stream: IO[bytes], shard: str) -> Iterator[TarMember]:
    """Yield the regular files of a shard in order; memory does not grow with their number."""
    try:
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # else it keeps every header
                if member.isfile():
                    yield TarMember(printable(member.name), member.offset_data, member.size)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise DataError(f"{shard}: not an uncompressed tar file ({error})") from None

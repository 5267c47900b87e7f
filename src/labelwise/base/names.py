"""Names: a long sequence of strings held by Arrow, a tenth of the memory of a Python list."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelwise.base.text import printable


class Names(Sequence[str]):
    """An immutable sequence of strings."""

    def __init__(self, strings: "Iterable[str] | pa.Array | pa.ChunkedArray") -> None:
        kind = pa.large_string()
        if isinstance(strings, Names):
            strings = strings.arrow
        if isinstance(strings, pa.Array):
            strings = pa.chunked_array([strings])
        if not isinstance(strings, pa.ChunkedArray):
            texts = list(strings)
            try:
                strings = pa.chunked_array([texts], kind)
            except UnicodeEncodeError:
                strings = pa.chunked_array([[*map(printable, texts)]], kind)
        # Casts are functions of pyarrow.compute, which takes longer to import than all of pyarrow.
        self.arrow: pa.ChunkedArray = strings if strings.type == kind else strings.cast(kind)

    def __len__(self) -> int:
        return len(self.arrow)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> "Names": ...
    def __getitem__(self, row: int | slice) -> "str | Names":
        if isinstance(row, slice):
            return self.take(np.arange(len(self))[row])
        text: str = self.arrow[int(row)].as_py()
        return text

    def __iter__(self) -> Iterator[str]:
        for chunk in self.arrow.chunks:
            for start in range(0, len(chunk), 65536):
                yield from chunk.slice(start, 65536).to_pylist()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Names({list(self)!r})" if len(self) < 8 else f"Names({len(self)} strings)"

    def take(self, rows: NDArray[np.int64]) -> "Names":
        return Names(self.arrow.take(pa.array(rows)).combine_chunks())

    def codes(self) -> NDArray[np.int64]:
        if not len(self):
            return np.zeros(0, np.int64)
        encoded = self.arrow.dictionary_encode().combine_chunks()
        return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)

    def firsts(self) -> NDArray[np.int64]:
        """Return the first row (n,) that holds the same text as each."""
        codes = self.codes()
        return np.unique(codes, return_index=True)[1][codes]

    def first_repeat(self) -> tuple[int, int] | None:
        import pyarrow.compute as pc

        before, after = self.arrow.slice(0, max(len(self) - 1, 0)), self.arrow.slice(1)
        if pc.all(pc.less(before, after), skip_nulls=False).as_py():  # sorted, as most tables are
            return None
        codes = self.codes()  # in the order in which texts come for the first time
        again = codes[1:] <= np.maximum.accumulate(codes)[:-1]
        if not again.any():
            return None
        row = 1 + int(again.argmax())
        return int((codes == codes[row]).argmax()), row

    @staticmethod
    def concatenate(parts: Iterable["Names"]) -> "Names":
        chunks = [chunk for names in parts for chunk in names.arrow.chunks]
        return Names(pa.chunked_array(chunks, pa.large_string()))


def real_names(paths: Sequence[str]) -> dict[str, str]:
    """Return {as shown: as it is} of the paths that cannot be shown as they are."""
    if isinstance(paths, Names):
        return {}
    shown = ((printable(path), path) for path in paths if not path.isascii())
    return {text: path for text, path in shown if text != path}

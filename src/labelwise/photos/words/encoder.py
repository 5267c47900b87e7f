"""SentenceEncoder: texts to vectors of length one, by onnxruntime and tokenizers.

    vector = unit(sum over tokens of mask x hidden state / sum of mask)

as sentence encoders such as all-MiniLM-L6-v2 are trained to be read. A folder holds one .onnx file
(inputs input_ids, attention_mask and perhaps token_type_ids; its first output is the hidden states
(1, tokens, D), or already one vector (1, D)) and tokenizer.json. Each text is encoded by itself:
files of 8-bit weights answer otherwise when a text has company.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import DataError, SettingsError
from labelwise.models.onnx_sessions import open_session
from labelwise.system.text import first_line

EXTRA = "pip install 'labelwise[words]'"
TOKENIZER_FILE = "tokenizer.json"
LONGEST = 128  # tokens; what comes after is cut off, as all-MiniLM-L6-v2 does
REMEMBERED = 4096  # vectors; a list of words is asked about several times
SHORTEST = 3  # letters of a word that may be spelled out
PIECE = 1.5  # letters per piece, below which a word is spelled out


class SentenceEncoder:
    """A text encoder of a local folder; nothing is fetched and no code of the folder is run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        graph = self._graph()
        try:
            import onnxruntime  # noqa: F401
            from tokenizers import Tokenizer
        except ImportError as error:
            raise SettingsError(
                f"words need the package {error.name!r}; install it with `{EXTRA}`"
            ) from None
        try:
            self.tokenizer: Any = Tokenizer.from_file(str(self.folder / TOKENIZER_FILE))
        except Exception as error:  # tokenizers raises no class of its own
            raise SettingsError(
                f"{self.folder / TOKENIZER_FILE} cannot be read: {first_line(error)}"
            ) from None
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(LONGEST)
        content = graph.read_bytes()
        self.digest = hashlib.sha256(content).hexdigest()
        self.session = open_session(content, threads=1, name=str(graph))
        self.inputs = {one.name for one in self.session.get_inputs()}
        self._vector = lru_cache(REMEMBERED)(self._encoded)
        unknown = self.inputs - {"input_ids", "attention_mask", "token_type_ids"}
        if unknown or "input_ids" not in self.inputs:
            raise SettingsError(
                f"{graph} must take input_ids and attention_mask, as sentence encoders do, got "
                f"{', '.join(sorted(self.inputs))}"
            )

    def _graph(self) -> Path:
        if not (self.folder / TOKENIZER_FILE).is_file():
            raise SettingsError(
                f"{self.folder} must hold {TOKENIZER_FILE} beside the encoder's .onnx file, and "
                "does not; copy it from where the encoder comes from"
            )
        graphs = sorted(self.folder.glob("*.onnx"))
        if len(graphs) != 1:
            names = ", ".join(path.name for path in graphs) or "none"
            raise SettingsError(f"{self.folder} must hold one .onnx file, got {names}")
        return graphs[0]

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one unit vector (D,) per text."""
        return np.stack([self._vector(text) for text in texts])

    def _encoded(self, text: str) -> NDArray[np.float32]:
        encoding = self.tokenizer.encode(text)
        ids = np.array([encoding.ids], np.int64)
        if not ids.size:
            raise DataError(
                f"the encoder knows no part of the text {text!r}; describe it otherwise"
            )
        mask = np.array([encoding.attention_mask], np.int64)
        fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        answer = self.session.run(None, {name: fed[name] for name in self.inputs})[0]
        if answer.ndim == 3:
            answer = (answer * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        vector = answer.reshape(-1).astype(np.float64)
        length = np.linalg.norm(vector)
        if not np.isfinite(length) or length == 0:
            raise DataError(f"the encoder gives {text!r} no direction; describe it otherwise")
        unit: NDArray[np.float32] = (vector / length).astype(np.float32)
        return unit

    def describe(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the unit mean (D,) of the vectors of texts that describe one thing."""
        mean = self.encode(texts).mean(0)
        unit: NDArray[np.float32] = mean / np.linalg.norm(mean)
        return unit

    def knows(self, text: str) -> bool:
        """Return whether the tokenizer has a piece for every part of a text."""
        unknown = {self.tokenizer.token_to_id(mark) for mark in ("[UNK]", "<unk>")} - {None}
        return not unknown & set(self.tokenizer.encode(text).ids)

    def spelled(self, text: str) -> str | None:
        """Return the first word of a text that the tokenizer has to take letter by letter, if any.

        Such a word was rare where the encoder was trained, as those in other letters often are.
        """
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for word, span in zip(encoding.word_ids, encoding.offsets, strict=True):
            if word is not None:
                spans[word].append(span)
        for pieces in spans.values():
            word = text[pieces[0][0] : pieces[-1][1]]
            if word.isalpha() and SHORTEST <= len(word) < PIECE * len(pieces):
                return word
        return None

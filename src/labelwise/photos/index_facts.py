"""IndexFacts: what ``index.json`` says, the format and where the model of an index is."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from labelwise.errors import CheckpointError
from labelwise.photos.checksums import way_out
from labelwise.system.files import replacing


class IndexFacts(BaseModel):
    """What ``index.json`` says: the format, and where the model and its held-out photos are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    model: str
    held_out: str | None = None
    decode: Literal["cpu", "cuda"] = "cpu"  # who decoded its JPEGs

    @property
    def may_promise(self) -> bool:
        """Whether the held-out photos fitted nothing; others are called val, whatever they are."""
        return self.held_out not in (None, "val")

    @property
    def known(self) -> str:
        """What to call the photos whose labels are known: those of validation are not held out."""
        return "validation" if self.held_out == "val" else "held-out"

    def save(self, path: Path) -> None:
        """Write the JSON file."""
        with replacing(path) as temporary:
            temporary.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> "IndexFacts":
        """Return what the file says, or raise with what is wrong."""
        try:
            return IndexFacts.model_validate_json(path.read_bytes(), strict=True)
        except FileNotFoundError:
            raise CheckpointError(
                f"{path.parent} is not an index; make one with `labelwise index FOLDER --model RUN`"
            ) from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise CheckpointError(
                f"{path} does not describe an index: {reason}; {way_out(path.parent)}"
            ) from None

"""ModelSpec: what ``model.json`` says, all of a model but its weights."""

import json
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from labelwise import __version__
from labelwise.base.files import MOST_FACTS, read_regular, replacing, summed, without_sum
from labelwise.base.pydantic_errors import first_fault
from labelwise.base.text import one_line, one_line_of
from labelwise.calibration.auto import link_from_spec
from labelwise.decide import Promise, Rule
from labelwise.decide.rules import rule_from_spec
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.links import Link, check_log_probs
from labelwise.pictures import Transform
from labelwise.taxonomy import AttributeColumns, LabelTree, Taxonomy
from labelwise.types import LabelSpace

MODEL_FILE = "model.json"
WEIGHTS_FILE = "model.safetensors"  # of a network that was trained
SOLVED_FILE = "model.onnx"  # of a linear classifier on an eye: its own export
FORMAT = 1
TRIED = "tried"
NOT_CALIBRATED = (
    "not calibrated: no answers yet; probabilities are a guess until photos are answered "
    "(labelwise train PHOTOS --words WORDS --answers TABLE)"
)
SHOWN = 5  # labels of a caution
NOT_USABLE = (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError)

WeightNames = Literal["labelwise", "timm"]


def caution_after(answers: int | None, unanswered: Sequence[str] = ()) -> str | None:
    """Return what must stand beside the probabilities of a model that so many answers made."""
    if answers == 0:
        return NOT_CALIBRATED
    if not unanswered:
        return None
    named = ", ".join(map(repr, unanswered[:SHOWN]))
    more = f" and {len(unanswered) - SHOWN:,} more" if len(unanswered) > SHOWN else ""
    return (
        f"not calibrated for {named}{more}: no answers yet; their probabilities are a guess from "
        "the answers about other labels"
    )


@dataclass(frozen=True)
class HeadSpec:
    """The name and options a head was made from, so that it can be made again."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class BackboneSpec:
    """The name of a backbone, how many channels its feature map has, and how it is pooled."""

    name: str
    channels: Annotated[int, Field(ge=1, le=1 << 20)]
    pooling: Literal["mean", "own"] = "mean"  # runs of 0.2 have the mean of the patches


class ModelSpec(BaseModel):
    """What ``model.json`` says: all of a model but its weights. Written and read by this class.

    ``link`` and ``rule`` are specs (plain data); :attr:`made_link` and :attr:`made_rule` are the
    objects. A spec that exists is whole: its link and rule can be made and fit the labels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal[1] = 1
    versions: dict[str, str] = Field(default_factory=lambda: _versions())
    method: str = ""
    labels: tuple[str, ...]
    backbone: BackboneSpec
    transform: Transform
    head: HeadSpec
    mirrored: bool = False  # models of 0.1 do not say
    crops: Literal[1, 5] = 1
    link: dict[str, object] | None
    rule: dict[str, object]
    promises: tuple[dict[str, object], ...] = ()
    taxonomy: dict[str, str] | None = None  # each child's parent
    answers: Annotated[int, Field(ge=0)] | None = None  # photos people answered; of words alone
    unanswered: tuple[str, ...] = ()  # labels of which those say nothing
    weights_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    weight_names: WeightNames = "labelwise"

    @field_validator("format", "crops", mode="before")
    @classmethod
    def _is_a_number(cls, value: object) -> object:
        """Refuse ``true``, which a literal takes for 1, being equal to it."""
        if isinstance(value, bool):
            raise ValueError(f"must be a number, got {str(value).lower()}")
        return value

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> "ModelSpec":
        """Try the link and the rule on one row, so that a wrong width is found here."""
        space = self.space
        if strange := set(self.unanswered).difference(space.names):
            raise ValueError(f"unanswered must name labels of the model, got {min(strange)!r}")
        if (info.context or {}).get(TRIED):
            return self
        try:
            taxonomy = self.made_taxonomy
        except LabelwiseError as error:
            raise ValueError(f"the taxonomy cannot be used: {one_line_of(error)}") from None
        require_fit(space, lambda: self.made_link, lambda: self.made_rule, self.promises, taxonomy)
        return self

    @cached_property
    def space(self) -> LabelSpace:
        try:
            return LabelSpace(self.labels)
        except LabelwiseError as error:
            raise ValueError(str(error)) from None

    @cached_property
    def made_link(self) -> Link | None:
        return None if self.link is None else link_from_spec(self.link)

    @cached_property
    def made_rule(self) -> Rule:
        return rule_from_spec(self.rule)

    @cached_property
    def made_taxonomy(self) -> Taxonomy | None:
        return None if self.taxonomy is None else Taxonomy(self.taxonomy)

    @cached_property
    def label_tree(self) -> LabelTree | None:
        return None if self.made_taxonomy is None else self.made_taxonomy.within(self.space)

    @cached_property
    def exclusive(self) -> AttributeColumns | None:
        """The groups of labels that exclude each other, if the model's link obeys such."""
        # Only a grouped link knows such labels, and to make one takes torch.
        link = self.made_link if (self.link or {}).get("kind") == "grouped" else None
        return None if link is None else link.exclusive

    @property
    def caution(self) -> str | None:
        return self.caution_beside(())

    def caution_beside(self, labels: Container[str]) -> str | None:
        """Return the caution; of labels that nobody answered for, these are named first."""
        named = sorted(self.unanswered, key=lambda name: name not in labels)
        return caution_after(self.answers, named)

    def save(self, path: Path) -> None:
        # Versions that do not know these entries refuse them: they stand only where they matter.
        given = {
            "weight_names": self.weight_names != "labelwise",
            "taxonomy": self.taxonomy,
            "answers": self.answers is not None,
            "unanswered": self.unanswered,
        }
        usual = {name for name, value in given.items() if not value}
        facts = self.model_dump(mode="json", exclude=usual)
        facts["transform"] = self.transform.spec()
        if self.backbone.pooling == "mean":
            del facts["backbone"]["pooling"]
        text = json.dumps(summed(facts), indent=2, ensure_ascii=False)
        with replacing(Path(path)) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path, *, tried: bool = False) -> "ModelSpec":
        """Return what a ``model.json`` says, or raise with the one thing that is wrong."""
        try:
            facts = json.loads(read_regular(path, MOST_FACTS)[0])
            whole = without_sum(facts) if isinstance(facts, dict) else None
        except FileNotFoundError:
            why = "does not exist; give the folder of a finished run"
            raise CheckpointError(f"{path} {why}") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is not JSON: {one_line_of(error)}") from None
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            got = facts.get("format") if isinstance(facts, dict) else type(facts).__name__
            raise CheckpointError(f"{path} must have format {FORMAT}, got {one_line(str(got)):.40}")
        if whole is None:
            why = "its entry sha256, which may be left out, is not the sum of the rest"
            raise CheckpointError(f"{path} is damaged, or was changed: {why}")
        text, context = json.dumps(whole), {TRIED: tried}
        try:  # strict: "7" or true is not 7
            return ModelSpec.model_validate_json(text, strict=True, context=context)
        except ValidationError as error:
            raise CheckpointError(f"{path} is not usable: {first_fault(error)}") from None
        except UnicodeError:
            raise CheckpointError(f"{path} holds text that is not Unicode") from None


def require_fit(
    space: LabelSpace,
    link: Callable[[], Link | None],
    rule: Callable[[], Rule],
    promises: Sequence[Mapping[str, object]] = (),
    taxonomy: Taxonomy | None = None,
) -> None:
    """Raise a ValueError unless these can be made and fit the labels; one row is enough to see."""
    columns = len(space)
    try:
        if taxonomy is not None:
            taxonomy.within(space)
    except LabelwiseError as error:
        raise ValueError(f"the taxonomy cannot be used: {one_line_of(error)}") from None
    for promise in promises:
        try:
            Promise.from_spec(promise)
        except LabelwiseError as error:
            raise ValueError(one_line_of(error)) from None
    row = np.zeros((1, columns))
    makers: dict[str, Callable[[], Link | Rule | None]] = {"link": link, "rule": rule}
    for name, make in makers.items():
        try:
            made = make()
            if made is None:  # the logits only rank
                continue
            if isinstance(made, Rule):
                shape = tuple(made(row).shape)
            else:
                shape = tuple(check_log_probs(*made.log_probs(row))[0].shape)
        except (LabelwiseError, *NOT_USABLE) as error:
            raise ValueError(f"the {name} cannot be used: {one_line_of(error)}") from None
        if shape != (1, columns):
            raise ValueError(f"the {name} must fit {columns} labels, got {shape[-1]} columns")


def _versions() -> dict[str, str]:
    versions = {"labelwise": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    torch = sys.modules.get("torch")
    return versions if torch is None else versions | {"torch": str(torch.__version__)}

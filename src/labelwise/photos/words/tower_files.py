"""TwoTowers: CLIP, SigLIP or SigLIP 2 as what scores photos for words.

    score_k = scale cos(photo, text_k) + bias      text_k: unit mean of the vectors of its texts

SigLIP's scores are log-odds of independent labels until people have answered. CLIP's only rank: as
with classes, a guessed curve makes probabilities of them. Folders are those of transformers:

    config.json, model.safetensors     CLIPModel, SiglipModel, Siglip2Model (at its square grid)
    tokenizer.json                     with tokenizer_config.json if there
    preprocessor_config.json           how photos become input

Sizes follow from the tensors, and every tensor must find its place. A text tower of CLIP has causal
attention and reads the last token. SigLIP fills every text up to full length, all tokens see each
other, and the last place is read. Texts are lower-cased for both SigLIPs, and the first also loses
its punctuation, as in training. Each text is encoded alone.
"""

import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from labelwise.base.arrays import Numbers
from labelwise.base.files import sha256_of
from labelwise.base.text import first_line, one_line_of, shortened
from labelwise.errors import DataError, SettingsError
from labelwise.learn.backbones.transformers import (
    ImageTower,
    TowerKind,
    TowerShape,
    TransformerBlock,
)
from labelwise.links import Link, Sigmoid
from labelwise.photos.words.classes import read_tokenizer
from labelwise.photos.words.scorers import (
    CONFIG,
    PREPROCESSOR,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    read_json,
)
from labelwise.photos.words.text_image import (
    TextDirections,
    TextHead,
    TextImageModel,
    pairs_above,
)
from labelwise.photos.words.word_list import usual_texts
from labelwise.pictures.transform import Transform


@dataclass(frozen=True, eq=False)
class Tokens:
    """A tokenizer as a model's training used it; ``fill`` fills texts up to full length."""

    tokenizer: Any
    places: int
    fill: int | None = None
    fill_left: bool = False
    lower: bool = False
    drop_punctuation: bool = False

    def __post_init__(self) -> None:
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.places)

    def of(self, text: str) -> list[int]:
        if self.lower:
            text = text.lower()
        if self.drop_punctuation:
            text = text.translate(str.maketrans("", "", string.punctuation))
            text = re.sub(r"\s+", " ", text).strip()
        try:
            ids: list[int] = self.tokenizer.encode(text).ids
        except Exception as error:  # tokenizers raises no class of its own
            reason = first_line(error)
            raise DataError(f"the model's tokenizer cannot read {text!r:.200}: {reason}") from None
        if self.fill is None:
            if not ids:
                raise DataError(f"the model knows no part of the text {text!r}; write another")
            return ids
        filling = [self.fill] * (self.places - len(ids))
        return [*filling, *ids] if self.fill_left else [*ids, *filling]


State = dict[str, Tensor]


class TextTower(nn.Module):
    """A transformer from the tokens of one text to its vector; a ``causal`` one is CLIP's.

    Its sizes are those of the tensors of a state, of which it takes a copy when it is loaded.
    """

    def __init__(
        self, state: State, *, causal: bool, heads: int, activation: str, eps: float
    ) -> None:
        super().__init__()
        self.vocabulary, self.causal = len(state["tokens.weight"]), causal
        self.places, width = state["positions"].shape
        if heads < 1 or width % heads:
            got = f"{width}, {heads}"
            raise SettingsError(f"the width of a text tower must divide by its heads: {got}")
        self.tokens = nn.Embedding(self.vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(self.places, width))
        settings = (width, heads, len(state["blocks.0.mlp.fc1.weight"]), activation, eps)
        self.blocks = nn.ModuleList(TransformerBlock(*settings) for _ in range(_depth(state)))
        self.after = nn.LayerNorm(width, eps)
        to = len(state["projection.weight"])
        self.projection = nn.Linear(width, to, bias=not causal)

    def forward(self, ids: Tensor) -> Tensor:
        return self.read(self.tokens(ids))

    def read(self, embedded: Tensor) -> Tensor:
        """Return one unit vector (D,) per text of embedded tokens (n, length, width)."""
        x = embedded + self.positions[: embedded.shape[1]]
        for block in self.blocks:
            x = block(x, self.causal)
        return normalize(self.projection(self.after(x[:, -1])), dim=1)

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], tokens: Tokens) -> Tensor:
        return torch.cat([self(torch.tensor([tokens.of(text)])) for text in texts])


NAMES = tomllib.loads(Path(__file__).with_name("tower_names.toml").read_text(encoding="utf-8"))
NOT_WEIGHTS = ("position_ids", "attn_mask", "logit_scale", "logit_bias")


def _half(state: State, kind: str, half: str) -> State:
    named, old = NAMES[kind], NAMES[kind]["from"][half]
    of_blocks = [name.removeprefix(old) for name in state if name.startswith(old)]
    depth = len({name.partition(".")[0] for name in of_blocks})
    weights = _taken(state, named[half])
    for number in range(depth):
        own = _taken(state, named["blocks"], f"{old}{number}.")
        weights |= {f"blocks.{number}.{name}": tensor for name, tensor in own.items()}
    patches = weights.get("patches.weight")
    if patches is not None and patches.ndim == 2:  # SigLIP 2 flattens by row, column, colour
        side = round((patches.shape[1] / 3) ** 0.5)
        flat = patches.reshape(len(patches), side, side, 3)
        weights["patches.weight"] = flat.permute(0, 3, 1, 2).contiguous()
    return weights


def _taken(state: State, names: Mapping[str, str | list[str]], before: str = "") -> State:
    weights = {}
    for name, theirs in names.items():
        for part in ("weight", "bias") if name.endswith("*") else ("",):
            olds = [theirs] if isinstance(theirs, str) else theirs
            tensors = [state.pop(before + old.replace("*", part)) for old in olds]
            weights[name.replace("*", part)] = torch.cat(tensors) if tensors[1:] else tensors[0]
    return weights


KINDS: dict[str, TowerKind] = {"clip": "clip", "siglip": "siglip", "siglip2": "siglip"}
ACTIVATION_NAMES = {"gelu": "gelu", "quick_gelu": "quick_gelu", "gelu_pytorch_tanh": "gelu_tanh"}
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
SETTINGS = ("hidden_act", "layer_norm_eps", "num_attention_heads")
DEFAULTS = {  # of transformers, where config.json leaves them out: of photos and of texts
    "clip": (("quick_gelu", 1e-5, 12), ("quick_gelu", 1e-5, 8)),
    "siglip": (("gelu_pytorch_tanh", 1e-6, 12), ("gelu_pytorch_tanh", 1e-6, 12)),
}
LARGEST_LOG = 100.0  # of a scale, which is stored as its logarithm
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def _number(tensor: Tensor | None) -> float | None:
    value = None if tensor is None else float(tensor)
    if value is not None and not abs(value) <= LARGEST_LOG:
        raise ValueError(f"a number must be finite and small, got {value:g}")
    return value


def _read(folder: Path, state: State) -> tuple[ImageTower, TextTower, Tokens]:
    """Return both halves of a model; their sizes follow from the tensors of its state."""
    config = read_json(folder / CONFIG)
    model_type = str(config.get("model_type"))
    if model_type not in KINDS:
        kinds = f"a model_type of {', '.join(KINDS)}"
        raise SettingsError(f"{folder / CONFIG} must be of {kinds}, got {model_type!r}")
    kind = KINDS[model_type]
    image, text = _half(state, kind, "image"), _half(state, kind, "text")
    built = []
    for part, usual in zip(("vision_config", "text_config"), DEFAULTS[kind], strict=True):
        own = {**dict(zip(SETTINGS, usual, strict=True)), **config.get(part, {})}
        name, eps, heads = (own[setting] for setting in SETTINGS)
        if name not in ACTIVATION_NAMES:
            must = f"must be one of {', '.join(ACTIVATION_NAMES)}"
            raise SettingsError(f"{folder / CONFIG}: hidden_act {must}, got {name!r}")
        if not 0 < float(eps) < 1:
            raise ValueError(f"layer_norm_eps must lie between 0 and 1, got {eps}")
        built.append((int(heads), ACTIVATION_NAMES[name], float(eps)))
    if strange := sorted(name for name in state if not name.endswith(NOT_WEIGHTS)):
        such = f"{len(strange)} tensors of the model are not read here, such as {strange[0]!r}"
        take = "take a vision transformer of CLIP, SigLIP or SigLIP 2"
        raise SettingsError(f"{folder}: {such}; {take}")
    (heads, activation, eps), (text_heads, text_activation, text_eps) = built
    mlp = len(image["blocks.0.mlp.fc1.weight"])
    patch, places = image["patches.weight"].shape[-1], len(image["positions"]) - (kind == "clip")
    to = len(image["projection.weight"]) if kind == "clip" else image["positions"].shape[1]
    side = patch * round(places**0.5)
    sizes = (len(image["patches.weight"]), _depth(image), heads, mlp, patch, side, to)
    tower = ImageTower(TowerShape(kind, *sizes, activation, eps), _preprocessing(folder, side))
    texts = TextTower(
        text, causal=kind == "clip", heads=text_heads, activation=text_activation, eps=text_eps
    )
    tokens = _tokens(folder, texts, siglip_2=model_type == "siglip2")
    return _loaded(tower, image, folder), _loaded(texts, text, folder), tokens


def _depth(half: State) -> int:
    return sum(name.endswith(".norm1.weight") for name in half)


def _preprocessing(folder: Path, side: int) -> Transform:
    config = read_json(_file(folder, PREPROCESSOR))
    size = config.get("size", side)
    edge = size.get("shortest_edge") if isinstance(size, dict) else size
    return Transform(
        side,
        tuple(config.get("image_mean", CLIP_MEAN)),
        tuple(config.get("image_std", CLIP_STD)),
        RESAMPLING.get(config.get("resample", 3), "bicubic"),
        None if edge is None else min(1.0, side / int(edge)),
    )


def _file(folder: Path, name: str, more: str = "") -> Path:
    if not (folder / name).is_file():
        copy = f"copy it from where the model comes from{more}"
        raise SettingsError(f"{folder} must hold {name}; {copy}")
    return folder / name


def _tokens(folder: Path, tower: TextTower, *, siglip_2: bool) -> Tokens:
    how = ", or write it by AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)"
    path = _file(folder, TOKENIZER, how)
    tokenizer = read_tokenizer(path)
    tokens = max(tokenizer.get_vocab().values(), default=-1) + 1  # numbers may be left out
    if tokens > tower.vocabulary:
        known = f"the model knows only {tower.vocabulary:,}"
        raise SettingsError(f"{path} has {tokens:,} tokens and {known}")
    if tower.causal:
        return Tokens(tokenizer, tower.places)
    settings = folder / TOKENIZER_CONFIG
    config = read_json(settings) if settings.is_file() else {}
    siglip_2 = siglip_2 or str(config.get("tokenizer_class")).startswith(("Gemma", "Siglip2"))
    pad = config.get("pad_token", "<pad>" if siglip_2 else "</s>")
    fill = tokenizer.token_to_id(pad["content"] if isinstance(pad, dict) else pad)
    if fill is None:
        raise SettingsError(f"{path} has no token {pad!r}, with which texts are filled up")
    usual = "left" if config.get("tokenizer_class") == "Siglip2Tokenizer" else "right"
    left = config.get("padding_side", usual) == "left"
    return Tokens(tokenizer, tower.places, fill, left, True, not siglip_2)


Half = TypeVar("Half", bound=nn.Module)


def _loaded(network: Half, state: dict[str, Tensor], folder: Path) -> Half:
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        misfit = f"the weights do not fit the configuration: {str(error).splitlines()[-1].strip()}"
        raise SettingsError(f"{folder}: {misfit}") from None
    if not all(bool(parameter.isfinite().all()) for parameter in network.parameters()):
        raise SettingsError(f"{folder}: the weights must be finite numbers; copy the model again")
    return network.eval()


ALIKE = 0.99  # cosine of two words; unlike those of sentence encoders, cosines of towers are high
SIGLIP_TEXT = "this is a photo of {}."
LATIN = 0x250  # letters from here on are no longer those of English and its neighbours


class TwoTowers(TextImageModel, TextDirections):
    """A text-image model of a folder, its own text half; without a ``bias`` scores only rank."""

    kind = "towers"

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise SettingsError(f"{folder} is not a folder; it must hold a text-image model")
        weights = self.folder / WEIGHTS
        if not weights.is_file():
            why = f"{folder} must hold {weights.name}, and does not"
            raise SettingsError(f"{why}; only safetensors are read")
        try:
            state = {name: value.float() for name, value in load_file(weights).items()}
        except (SafetensorError, OSError, ValueError) as error:
            raise SettingsError(f"{weights} cannot be read: {first_line(error)}") from None
        try:
            scale, self.bias = (_number(state.get(n)) for n in ("logit_scale", "logit_bias"))
            self.image, self.text, self.tokens = _read(self.folder, state)
        except LookupError as error:
            built = f"the model is built in a way that is not read here (no {error})"
            towers = "one whose towers are vision transformers of CLIP, SigLIP or SigLIP 2"
            raise SettingsError(f"{folder}: {built}; take {towers}") from None
        except (TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
            wrong = "its settings or weights are not those of a text-image model"
            reason = shortened(one_line_of(error), 300)
            raise SettingsError(f"{folder}: {wrong} ({reason})") from None
        self.scale = 1.0 if scale is None else exp(scale)
        self.network, self.digest = self.image, sha256_of(weights)

    @property
    def texts(self) -> "TwoTowers":
        return self

    def directions(self, texts: Sequence[Sequence[str]]) -> Numbers:
        columns = []
        for own in texts:
            if self.bias is not None and tuple(own) == usual_texts(own[-1]):
                own = [SIGLIP_TEXT.format(own[-1])]
            columns.append(normalize(self.text.encode(own, self.tokens).mean(dim=0), dim=0))
        return np.asarray(torch.stack(columns, dim=1).double().numpy())

    def doubt(self, name: str, texts: Sequence[str]) -> str | None:
        strange = [text for text in texts if any(ord(letter) >= LATIN for letter in text)]
        if not strange or not self.text.causal:
            return None
        return (
            f"CLIP was trained on English, and {strange[0]!r} is written in other letters: "
            f"describe {name!r} in English, as in: name: a text in English"
        )

    def alike(self, texts: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
        return pairs_above(self.directions(texts).T, ALIKE)

    def head(
        self,
        texts: Sequence[Sequence[str]],
        mean_features: NDArray[Any],
        features: NDArray[Any] | None = None,
    ) -> TextHead:
        weight = self.scale * self.directions(texts)
        return TextHead(weight, np.full(len(texts), self.bias or 0.0))

    def guessed(self, scores: NDArray[Any]) -> Link:
        return super().guessed(scores) if self.bias is None else Sigmoid()

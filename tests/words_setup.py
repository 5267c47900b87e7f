"""A small text-image model that is real: an ONNX encoder, a tokenizer, and a classifier of colours.

The encoder looks words up in a table of vectors, in which words of one meaning lie together. The
classifier is a random network of timm whose last layer was solved to tell colours apart.
"""

import json
from pathlib import Path

import numpy as np
import timm
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from labelwise.learn.backbones import create_backbone

ARCHITECTURE, SIDE = "test_resnet", 32
COLOURS = {"red": (220, 30, 30), "green": (30, 190, 40), "blue": (40, 50, 220)}
CLASSES = tuple(COLOURS)
MEANINGS = {"crimson": "red", "scarlet": "red", "grass": "green", "sky": "blue"}
FILLERS = ("a", "photo", "of", "the", "[UNK]")
VOCABULARY = (*CLASSES, *MEANINGS, *FILLERS, "justice")
LENGTH = 24


def word_vectors() -> np.ndarray:
    """Return the table (V, 24): synonyms are near each other, fillers are short."""
    random = np.random.default_rng(5)
    table = random.normal(size=(len(VOCABULARY), LENGTH)).astype(np.float32)
    for word, meaning in MEANINGS.items():
        noise = table[VOCABULARY.index(word)]
        table[VOCABULARY.index(word)] = table[VOCABULARY.index(meaning)] + 0.2 * noise
    for word in FILLERS:
        table[VOCABULARY.index(word)] *= 0.05
    return table


def save_encoder(folder: Path) -> Path:
    """Write encoder.onnx, which looks vectors up, and tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["hidden"])],
        "encoder",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, [1, "tokens"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [1, "tokens", LENGTH])],
        [numpy_helper.from_array(word_vectors(), "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "encoder.onnx").write_bytes(model.SerializeToString())
    words = {word: number for number, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def photo(colour: str, seed: int) -> Image.Image:
    """Return a noisy photo, half of it of a colour."""
    random = np.random.default_rng([seed, CLASSES.index(colour)])
    pixels = random.integers(60, 120, (SIDE, SIDE, 3))
    top = int(random.integers(0, SIDE // 2))
    pixels[top : top + SIDE // 2] = COLOURS[colour] + random.integers(-20, 20, 3)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def save_words_model(folder: Path) -> Path:
    """Write the whole model: encoder, tokenizer, classifier and the names of its classes."""
    save_encoder(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = timm.create_model(ARCHITECTURE, num_classes=len(CLASSES)).eval()
    state = network.state_dict()
    body = {name: tensor for name, tensor in state.items() if not name.startswith("fc.")}
    (folder / "config.json").write_text(json.dumps({"architecture": ARCHITECTURE}))
    save_file(state, folder / "model.safetensors")
    backbone = create_backbone(ARCHITECTURE, weights=str(folder), image_size=SIDE, squash=True)
    seen = [(photo(colour, 1000 + seed), colour) for seed in range(40) for colour in CLASSES]
    pixels = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image, _ in seen])
    with torch.inference_mode():
        features = backbone.eval()(backbone.transform.inputs(pixels)).mean(dim=(2, 3))
    truth = torch.tensor([[4.0 if c == colour else -4.0 for c in CLASSES] for _, colour in seen])
    mean = features.mean(dim=0)
    centred = (features - mean).double()
    ridge = 1e-3 * torch.eye(features.shape[1], dtype=torch.float64) * centred.square().mean()
    ridge *= len(centred)
    weight = torch.linalg.solve(centred.T @ centred + ridge, centred.T @ truth.double()).T.float()
    bias = truth.mean(dim=0) - weight @ mean
    save_file(
        {**body, "fc.weight": weight.contiguous(), "fc.bias": bias}, folder / "model.safetensors"
    )
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return folder


def save_photos(folder: Path, count: int = 30) -> dict[str, str]:
    """Write photos and return the colour of each by its name; colours take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    colours = {}
    for number in range(count):
        name, colour = f"{number:03d}.png", CLASSES[number % len(CLASSES)]
        photo(colour, number).save(folder / name)
        colours[name] = colour
    return colours


def save_words_example(folder: Path) -> None:
    """Write what tutorial-no-labels.md starts with: minilm/, photos/, words.txt and answers.csv.

    Red photos count as dogs, green ones as cats and blue ones as beaches.
    """
    save_words_model(folder / "minilm")
    colours = save_photos(folder / "photos", 60)
    (folder / "words.txt").write_text("pet\ndog: red; pet\ncat: grass; pet\nbeach: the sky\n")
    lines = ["path,pet,dog,cat,beach"]
    for name, colour in colours.items():
        dog, cat, beach = (int(colour == one) for one in CLASSES)
        lines.append(f"photos/{name},{dog or cat:d},{dog},{cat},{beach}")
    (folder / "answers.csv").write_text("\n".join(lines) + "\n")

"""From words to tags: every figure of evidence/words.md, from a folder of data.

    python benchmarks/words_journey.py DATA --cache FOLDER

DATA holds coco80-val-test.parquet, captions-10k.parquet and weights/all-MiniLM-L6-v2. Photos are
the split test of COCO, none of which taught anything. Without an answer: mean average precision of
each route over all 80 words, and over COCO's 18 animals and vehicles. recall@10: how many of 1,500
captions have their photo among the first ten, with maps learned from the others. With answers: 50
or 200 photos, drawn at random, answered for the 40 most frequent words. Albums: 20 photos of a
category, and how many of the 50 suggestions for the rest are right; of the ten categories that do
best, and of all that have 70 photos.
"""

import argparse
import json
from pathlib import Path
from time import process_time

import numpy as np
import torch
from words_data import ENCODER, captions, learn, photos

from labelwise.metrics import average_precision, reliability
from labelwise.photos.embeddings import ALBUM_RIDGE, Projection
from labelwise.photos.words import ClassesAndWords, WordList
from labelwise.photos.words.answered import answered_head

RESULTS = Path(__file__).parent / "results" / "words_journey.json"
ANIMALS_AND_VEHICLES = (
    *("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"),
    *("bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat"),
)
SHOWN = ("dog", "bird", "horse", "airplane", "fire hydrant")
HELD_OUT, ALBUM, SUGGESTED, LEAST = 1500, 20, 50, 70


def precisions(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the average precision of each label."""
    columns = range(labels.shape[1])
    return np.array(
        [float(average_precision(scores[:, [k]], labels[:, [k]]).value) for k in columns]
    )


def without_answers(model: ClassesAndWords, x, labels, names) -> dict[str, float]:
    texts = [word.texts for word in WordList.of(*names).words]
    features = torch.from_numpy(x)
    routes, _ = model.routes(texts, x, model.texts.maps)
    named = model.texts.classes.directions(model.texts.vectors(texts)).numpy()
    moved = model.head(texts, features.mean(dim=0), features).scores(features).numpy()
    linear = model.head(texts, features.mean(dim=0)).scores(features).numpy()
    few = [names.index(name) for name in ANIMALS_AND_VEHICLES]
    found = {}
    for route, scores in (
        ("class names", x @ named),
        ("captions", routes[2]),
        ("a text, as search --text takes it", linear),
        ("head", moved),
    ):
        each = precisions(scores, labels)
        found[f"{route}, mAP of 80"] = float(np.nanmean(each))
        found[f"{route}, mAP of 18"] = float(each[few].mean())
        found |= {f"{route}, AP of {name}": float(each[names.index(name)]) for name in SHOWN}
    return found


def recall(features: np.ndarray, texts: np.ndarray) -> float:
    order = np.random.default_rng(1).permutation(len(texts))
    held, own = order[:HELD_OUT], order[HELD_OUT:]
    standard = (features - features.mean(0)) / (features.std(0) + 1e-6)
    centred = texts - texts[own].mean(0)
    image, text = learn(standard[own], centred[own])
    seen, said = standard[held] @ image.T, centred[held] @ text.T
    cosines = said @ (seen / np.linalg.norm(seen, axis=1, keepdims=True)).T
    rank = (cosines >= np.diag(cosines)[:, None]).sum(1)
    return float((rank <= 10).mean())


def with_answers(model: ClassesAndWords, x, labels, names, draws: int) -> dict[str, float]:
    frequent = np.sort(np.argsort(-labels.sum(0))[:40])
    features, truth = torch.from_numpy(x), torch.from_numpy(labels[:, frequent]).double()
    texts = [word.texts for word in WordList.of(*(names[k] for k in frequent)).words]
    text = model.head(texts, features.mean(dim=0), features)
    found: dict[str, list[float]] = {}
    for draw in range(draws):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(draw))
        for count in (50, 200):
            asked, rest = order[:count], order[count:]
            begun = process_time()
            made = answered_head(text, features[asked], truth[asked], None, pool=features)
            took = process_time() - begun
            scores, own = made.head.scores(features[rest]), truth[rest]
            with torch.no_grad():
                probs = made.calibration.link(scores)
            flat = (probs.reshape(-1, 1), own.reshape(-1, 1))
            before = float(average_precision(text.scores(features[rest]), own).value)
            after = float(average_precision(scores, own).value)
            for name, value in (
                ("mAP of 40 before", before),
                ("mAP of 40", after),
                ("ECE", float(reliability(*flat, bins=15).ece())),
                ("processor seconds of a refit", took),
            ):
                found.setdefault(f"{count} answers, {name}", []).append(value)
    return {name: float(np.mean(values)) for name, values in found.items()}


def albums(x, labels, names, draws: int) -> dict[str, float]:
    looks = Projection.fitted(x)(x).astype(np.float64)
    covariance = np.cov(looks.T, bias=True)
    ridge = ALBUM_RIDGE * np.trace(covariance) / len(covariance)
    inverse = np.linalg.inv(covariance + ridge * np.eye(len(covariance)))
    right = {}
    for column in np.flatnonzero(labels.sum(0) >= LEAST):
        shares = []
        for draw in range(draws):
            random = np.random.default_rng(draw)
            album = random.choice(np.flatnonzero(labels[:, column]), ALBUM, replace=False)
            scores = looks @ (inverse @ (looks[album].mean(0) - looks.mean(0)))
            scores[album] = -np.inf
            shares.append(labels[np.argsort(-scores)[:SUGGESTED], column].mean())
        right[names[column]] = float(np.mean(shares))
    best = sorted(right.values())[-10:]
    return {
        "albums, precision@50 of the ten best categories": float(np.mean(best)),
        f"albums, precision@50 of all {len(right)} categories": float(
            np.mean(list(right.values()))
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("runs") / "words", help="for features")
    parser.add_argument("--draws", type=int, default=3)
    given = parser.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    model = ClassesAndWords(given.data / ENCODER, cache=given.cache)
    x, labels, names, split = photos(given.data, model, given.cache)
    x, labels = x[split == "test"], labels[split == "test"]
    figures = without_answers(model, x, labels, names)
    figures["recall@10 of 1,500 captions"] = recall(*captions(given.data, model, given.cache))
    figures |= with_answers(model, x, labels, names, given.draws)
    figures |= albums(x, labels, names, given.draws)
    rounded = {name: round(value, 4) for name, value in figures.items()}
    command = f"python benchmarks/words_journey.py DATA --draws {given.draws}"
    RESULTS.write_text(json.dumps({"command": command, "figures": rounded}, indent=1) + "\n")
    print(json.dumps(rounded, indent=1))


if __name__ == "__main__":
    main()

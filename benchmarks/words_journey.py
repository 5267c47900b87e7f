"""From words to tags: every figure of evidence/words.md, from a folder of data.

    python benchmarks/words_journey.py DATA --cache FOLDER

DATA holds coco80-val-test.parquet, captions-10k.parquet and weights/all-MiniLM-L6-v2. Photos are
the split test of COCO, none of which taught anything. Without an answer: mean average precision of
each route over all 80 words, and over COCO's 18 animals and vehicles. recall@10: how many of 1,500
captions have their photo among the first ten, with maps learned from the others. With answers: 50
or 200 photos, drawn at random, answered for the 40 most frequent words; and questions chosen as
`label --page --guide` chooses them. Albums: 20 photos of a category, and how many of the 50
suggestions for the rest are right; of the ten categories that do best on the split val, and of all.
"""

import argparse
import json
from os import cpu_count
from pathlib import Path
from platform import machine
from subprocess import run
from time import process_time

import numpy as np
import torch
from words_data import ENCODER, captions, learn, photos

from labelwise.metrics import average_precision, reliability
from labelwise.photos.embeddings import ALBUM_RIDGE, Projection, mapped, to_captions
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
    named = (model.texts.shares(model.texts.vectors(texts)) @ model.weight.double()).T.numpy()
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


def with_answers(model, x, labels, names, draws: int, every) -> dict[str, float]:
    """Answer photos at random for 40 words; time a refit beside a library of 5,000 photos."""
    frequent = np.sort(np.argsort(-labels.sum(0))[:40])
    features, truth = torch.from_numpy(x), torch.from_numpy(labels[:, frequent]).double()
    texts = [word.texts for word in WordList.of(*(names[k] for k in frequent)).words]
    text = model.head(texts, features.mean(dim=0), features)
    found: dict[str, list[float]] = {}
    library = torch.from_numpy(np.resize(every, (5000, every.shape[1])))  # some photos twice
    for draw in range(draws):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(draw))
        for count in (50, 200):
            asked, rest = order[:count], order[count:]
            made = answered_head(text, features[asked], truth[asked], None, pool=features)
            begun = process_time()
            answered_head(text, features[asked], truth[asked], None, pool=library)
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


def chosen_questions(model: ClassesAndWords, x, labels, names, draws: int) -> dict[str, float]:
    """Ask as the guide does: each of 40 words in turn about 20 photos, then refit.

    Of these, 16 have the greatest p (1 - p), or p before the word's first answer; 4 are random.
    Half of the photos are the library, the others are hidden.
    """
    frequent = np.sort(np.argsort(-labels.sum(0))[:40])
    texts = [word.texts for word in WordList.of(*(names[k] for k in frequent)).words]
    found: dict[str, list[float]] = {}
    for draw in range(draws):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(100 + draw))
        own, hidden = order[: len(x) // 2], order[len(x) // 2 :]
        features, truth = torch.from_numpy(x), torch.from_numpy(labels[:, frequent]).double()
        library, random = features[own], np.random.default_rng(draw)
        text = model.head(texts, library.mean(dim=0), library)
        probs = model.guessed(text.scores(library))(text.scores(library)).double()
        known = torch.zeros_like(probs, dtype=torch.bool)
        before = float(average_precision(text.scores(features[hidden]), truth[hidden]).value)
        for turn in range(1, 6):
            value = probs * (1 - probs) if turn > 1 else probs
            for k in range(len(frequent)):
                free = np.flatnonzero(~known[:, k].numpy())
                known[random.choice(free, 4, replace=False), k] = True
                known[torch.where(known[:, k], -1.0, value[:, k]).topk(16).indices, k] = True
            rows, begun = known.any(dim=1), process_time()
            made = answered_head(text, library[rows], truth[own][rows], known[rows], pool=library)
            took = process_time() - begun
            with torch.no_grad():
                probs = made.calibration.link(made.head.scores(library)).double()
                judged = made.calibration.link(made.head.scores(features[hidden]))
            after = float(
                average_precision(made.head.scores(features[hidden]), truth[hidden]).value
            )
            flat = (judged.reshape(-1, 1), truth[hidden].reshape(-1, 1))
            for name, number in (
                ("mAP gained", after - before),
                ("ECE", float(reliability(*flat, bins=15).ece())),
                ("processor seconds of a refit", took),
            ):
                found.setdefault(f"{800 * turn:,} chosen questions, {name}", []).append(number)
    return {name: float(np.mean(values)) for name, values in found.items()}


def album_precisions(x, labels, count: int, least: int, draws: int) -> dict[int, float]:
    """Return the precision of the first suggestions for albums of the categories with photos."""
    projection = Projection.fitted(x)
    looks = mapped(projection(x), to_captions(projection)).astype(np.float64)
    covariance = np.cov(looks.T, bias=True)
    ridge = ALBUM_RIDGE * np.trace(covariance) / len(covariance)
    inverse = np.linalg.inv(covariance + ridge * np.eye(len(covariance)))
    right = {}
    for column in np.flatnonzero(labels.sum(0) >= least).tolist():
        shares = []
        for draw in range(draws):
            random = np.random.default_rng(draw)
            album = random.choice(np.flatnonzero(labels[:, column]), ALBUM, replace=False)
            scores = looks @ (inverse @ (looks[album].mean(0) - looks.mean(0)))
            scores[album] = -np.inf
            shares.append(labels[np.argsort(-scores)[:count], column].mean())
        right[column] = float(np.mean(shares))
    return right


def albums(x, labels, split, names, draws: int) -> dict[str, float]:
    """Judge the ten categories that do best on val, and all that have photos, on test."""
    val, test = split == "val", split == "test"
    first = album_precisions(x[val], labels[val], 20, 40, draws)
    right = album_precisions(x[test], labels[test], SUGGESTED, SUGGESTED, draws)
    ten = sorted(first, key=lambda column: -first[column])[:10]
    many = [column for column in right if labels[test][:, column].sum() >= LEAST]
    return {
        **{f"albums, precision@50 of {names[k]}": right[k] for k in ten},
        "albums, precision@50 of ten chosen on val": np.mean([right[k] for k in ten]),
        "albums, precision@50 of the ten best": np.mean(sorted(right.values())[-10:]),
        f"albums, precision@50 of all {len(many)} with 70 photos": np.mean(
            [right[k] for k in many]
        ),
        f"albums, precision@50 of all {len(right)} with 50 photos": np.mean(list(right.values())),
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
    torch.set_num_threads(1)  # a thread that waits for another counts as processor time
    figures = albums(x, labels, split, names, given.draws)
    every, x, labels = x, x[split == "test"], labels[split == "test"]
    figures |= without_answers(model, x, labels, names)
    figures["recall@10 of 1,500 captions"] = recall(*captions(given.data, model, given.cache))
    figures |= with_answers(model, x, labels, names, given.draws, every)
    figures |= chosen_questions(model, x, labels, names, given.draws)
    rounded = {name: round(value, 4) for name, value in figures.items()}
    command = f"python benchmarks/words_journey.py DATA --draws {given.draws}"
    facts = {
        "command": command,
        "commit": run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "machine": f"{cpu_count()} cores, {machine()}, one thread",
        "figures": rounded,
    }
    RESULTS.write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(rounded, indent=1))


if __name__ == "__main__":
    main()

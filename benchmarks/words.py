"""Words, and a few answers: how well photos are ranked, and how honest the probabilities are.

    python benchmarks/words.py --photos coco80-val-test.parquet --model all-MiniLM-L6-v2

For each number of answers and each draw: mean average precision on the photos that were not
answered, of the text score, of a plain solved head on the answers, and of the head with the words
as its prior; and the expected calibration error of that head over all entries (15 equal bins). The
mean of the draws comes with their least and greatest.

With ``--unanswered`` only a part of the words is answered: half at random, the more frequent half,
the ten most frequent. Of the others it shows what they claim on average, their share, and the error
of their probabilities, beside that of the guess before any answer and that of the answered words.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from labelwise.links import Link
from labelwise.metrics import average_precision, reliability
from labelwise.objectives.convex import CoinLoss
from labelwise.photos.words import ClassesAndWords, TextHead, WordList
from labelwise.photos.words.answered import answered_head
from labelwise.photos.words.start import features_of
from labelwise.pictures.memory import BytesImages
from labelwise.training.solve import solve
from labelwise.types import Targets

BINS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", type=Path, required=True, help="Parquet: image, labels, split")
    parser.add_argument("--model", type=Path, required=True, help="folder of a sentence encoder")
    parser.add_argument("--count", type=int, default=1000, help="photos of the split test")
    parser.add_argument("--first", type=int, default=0, help="photos of that split to leave out")
    parser.add_argument("--answers", type=int, nargs="+", default=[20, 50, 100, 200, 500])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--cache", type=Path, help="folder to keep features in")
    parser.add_argument("--unanswered", action="store_true", help="words that nobody answered for")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(given, given.cache or Path(folder))


def measure(given: argparse.Namespace, cache: Path) -> None:
    table = pq.read_table(given.photos)
    table = table.filter(np.array(table["split"].to_pylist()) == "test").slice(
        given.first, given.count
    )
    carried = table["labels"].to_pylist()
    names = sorted({name for labels in carried for name in labels})
    truth = torch.tensor([[name in labels for name in names] for labels in carried]).double()
    model = ClassesAndWords(given.model, image_size=given.image_size, cache=cache)
    images = BytesImages(table["image"].to_pylist(), list(map(str, range(len(table)))))
    photos = features_of(images, model.backbone, cache)
    x = photos.of([photos.digests[row] for row in range(len(table))]).double()
    words = WordList.of(*names)
    text = model.head([word.texts for word in words.words], x.mean(dim=0))
    if given.unanswered:
        guess = model.guessed(text.scores(x))
        for count in given.answers:
            for which in ("half", "frequent half", "ten frequent"):
                draws = [
                    one_draw_in_part(text, guess, x, truth, count, which, draw)
                    for draw in range(given.draws)
                ]
                for name in draws[0]:
                    mean = np.mean([row[name] for row in draws])
                    print(f"  {count:>4} answers, {which:<14} {name:<20} {mean:.4f}", flush=True)
        return
    print(f"{len(x):,} photos, {len(names)} words; without answers:")
    print(f"  mAP of the text score {precision(text.scores(x), truth):.3f}")
    for count in given.answers:
        rows = [one_draw(text, x, truth, count, draw) for draw in range(given.draws)]
        for name in rows[0]:
            values = [row[name] for row in rows]
            ends = f"{min(values):.4f} to {max(values):.4f}"
            print(f"  {count:>4} answers  {name:<20} {np.mean(values):.4f}  ({ends})", flush=True)


def one_draw(
    text: TextHead, x: torch.Tensor, truth: torch.Tensor, count: int, draw: int
) -> dict[str, float]:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(draw))
    asked, rest = order[:count], order[count:]
    head = answered_head(text, x[asked], truth[asked], None, pool=x)
    cut = max(4, count // 5)
    own, val = (CoinLoss.of(Targets(truth[part])) for part in (asked[cut:], asked[:cut]))
    plain = solve(x[asked[cut:]], own, x[asked[:cut]], val)
    scores = head.head.scores(x[rest])
    with torch.no_grad():
        probs = head.calibration.link(scores)
    return {
        "text score, mAP": precision(text.scores(x[rest]), truth[rest]),
        "plain head, mAP": precision(plain.logits(x[rest]), truth[rest]),
        "words as prior, mAP": precision(scores, truth[rest]),
        "words as prior, ECE": calibration_error(probs, truth[rest]),
    }


def one_draw_in_part(
    text: TextHead,
    guess: Link,
    x: torch.Tensor,
    truth: torch.Tensor,
    count: int,
    which: str,
    draw: int,
) -> dict[str, float]:
    generator = torch.Generator().manual_seed(draw)
    order = torch.randperm(len(x), generator=generator)
    asked, rest = order[:count], order[count:]
    words = truth.shape[1]
    mixed = torch.randperm(words, generator=generator)
    frequent = truth.mean(dim=0).argsort(descending=True)
    own = {
        "half": mixed[: words // 2],
        "frequent half": frequent[: words // 2],
        "ten frequent": frequent[:10],
    }[which]
    answered = torch.zeros(words, dtype=torch.bool)
    answered[own] = True
    made = answered_head(text, x[asked], truth[asked], answered.expand(count, -1), pool=x)
    with torch.no_grad():
        probs = made.calibration.link(made.head.scores(x[rest]))
        guessed = guess(text.scores(x[rest]))
    labels = truth[rest]
    return {
        "mean probability": float(probs[:, ~answered].mean()),
        "share": float(labels[:, ~answered].mean()),
        "ECE": calibration_error(probs[:, ~answered], labels[:, ~answered]),
        "ECE of the guess": calibration_error(guessed[:, ~answered], labels[:, ~answered]),
        "ECE, answered words": calibration_error(probs[:, answered], labels[:, answered]),
    }


def precision(scores: torch.Tensor, labels: torch.Tensor) -> float:
    return float(average_precision(scores, labels).value)


def calibration_error(probs: torch.Tensor, labels: torch.Tensor) -> float:
    return float(reliability(probs.reshape(-1, 1), labels.reshape(-1, 1), bins=BINS).ece())


if __name__ == "__main__":
    main()

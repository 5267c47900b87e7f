"""Words, and a few answers: how well photos are ranked, and how honest the probabilities are.

    python benchmarks/words.py --photos coco80-val-test.parquet --model all-MiniLM-L6-v2

For each number of answers and each draw: mean average precision on the photos that were not
answered, of the text score, of a plain solved head on the answers, and of the head with the words
as its prior; and the expected calibration error of that head over all entries (15 equal bins). The
mean of the draws comes with their least and greatest.

With ``--unanswered`` only a part of the words is answered: half at random, the more frequent half,
the ten most frequent. Of the others it shows what they claim on average, their share, and the error
of their probabilities, beside that of the guess before any answer and that of the answered words.

With ``--promise`` the words are the 10, 20 and 40 most frequent labels, and answers come until
``--wrong-at-most`` of the tags can be promised on the share that is set aside: how many answered
photos that takes, the tags that all others then get, and how many of these are right.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from labelwise.decide import promise_tags
from labelwise.learn.objectives.convex import CoinLoss
from labelwise.links import Link
from labelwise.metrics import average_precision, reliability
from labelwise.photos.words import ClassesAndWords, TextHead, WordList
from labelwise.photos.words.answered import answered_head
from labelwise.photos.words.start import features_of
from labelwise.pictures.memory import BytesImages
from labelwise.predictions import Predictions
from labelwise.training.solve import solve
from labelwise.types import Targets

BINS = 15
ANSWERS = (50, 100, 150, 200, 300, 400, 500, 700, 1000, 1400)


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
    parser.add_argument("--promise", action="store_true", help="answers until tags are promised")
    parser.add_argument("--wrong-at-most", type=float, default=0.1)
    parser.add_argument("--set-aside", type=float, default=0.2)
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
    text = model.head([word.texts for word in words.words], x.mean(dim=0), x.float())
    if given.promise:
        frequent = truth.sum(dim=0).argsort(descending=True)
        goal = given.wrong_at_most, given.set_aside
        for count in (10, 20, 40):
            chosen = frequent[:count].sort().values
            own = TextHead(text.weight[:, chosen], text.bias[chosen])
            listed = tuple(names[column] for column in chosen.tolist())
            draws = range(given.draws)
            report(count, [journey(own, x, truth[:, chosen], listed, d, *goal) for d in draws])
        return
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


def journey(
    text: TextHead,
    x: torch.Tensor,
    truth: torch.Tensor,
    names: tuple[str, ...],
    draw: int,
    wrong_at_most: float,
    set_aside: float,
) -> tuple[int, int, float] | None:
    """Return answers needed, tags written and the share of them that is right; None without."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(draw))
    for count in ANSWERS:
        cut = round(set_aside * count)
        aside, own = order[:cut], order[cut:count]
        made = answered_head(text, x[own], truth[own], None, pool=x)
        logits = made.head.scores(x[aside]).float()
        ids = list(map(str, aside.tolist()))
        link = made.calibration.link
        held = Predictions(ids, logits, truth[aside].float(), None, names, "test", link)
        promised = promise_tags(held.evidence(photos="set aside"), level=1 - wrong_at_most)
        if promised.promises:
            rest = order[count:]
            with torch.no_grad():
                tags = promised.rule(link(made.head.scores(x[rest])))
            right = truth[rest].bool() & tags
            return count, int(tags.sum()), float(right.sum() / tags.sum().clamp(min=1))
    return None


def report(words: int, found: list[tuple[int, int, float] | None]) -> None:
    made = [one for one in found if one is not None]
    line = f"{words:>3} words: {len(made)} of {len(found)} draws within {max(ANSWERS):,} answers"
    if made:
        for place, (name, form) in enumerate(
            (("answers", ".0f"), ("tags written", ".0f"), ("right", ".3f"))
        ):
            values = [one[place] for one in made]
            middle, low, high = np.median(values), min(values), max(values)
            line += f"; {name} {middle:{form}} ({low:{form}} to {high:{form}})"
    print(line, flush=True)


def precision(scores: torch.Tensor, labels: torch.Tensor) -> float:
    return float(average_precision(scores, labels).value)


def calibration_error(probs: torch.Tensor, labels: torch.Tensor) -> float:
    return float(reliability(probs.reshape(-1, 1), labels.reshape(-1, 1), bins=BINS).ece())


if __name__ == "__main__":
    main()

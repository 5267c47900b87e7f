"""From words to tags with a promise: how many answered photos it takes, and what is then written.

    python benchmarks/words_journey.py --photos coco80-val-test.parquet --model all-MiniLM-L6-v2

The words are the 10, 20 and 40 most frequent labels. A share of the answered photos, drawn at
random, is set aside; the head with the words as its prior is fitted on the others, and a promise is
sought on those set aside: at most a share of the tags is wrong (95 % confidence). The first number
of answers at which it can be made is shown, with the tags that all other photos then get and how
many of them are right: the median of the draws, and the least and the greatest.

With ``--speed`` two ratios instead: features by ``labelwise start`` beside decoding and forwarding
by hand in the same batches, and a refit at 40 labels and 500 answers beside one plain solved head.
``--tower`` takes the features of CLIP's ViT-B/16 with random weights, and needs no model.
"""

import argparse
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image

from labelwise.decide import promise_tags
from labelwise.networks.backbones import Backbone, create_backbone
from labelwise.objectives.convex import CoinLoss
from labelwise.photos.words import ClassesAndWords, TextHead, WordList
from labelwise.photos.words.answered import answered_head
from labelwise.photos.words.start import features_of
from labelwise.pictures.memory import BytesImages
from labelwise.predictions import Predictions
from labelwise.training.solve import solve
from labelwise.types import Targets

ANSWERS = (50, 100, 150, 200, 300, 400, 500, 700, 1000, 1400)
BATCH = 64
TOWER = "tower/clip-768x12x12-mlp3072-patch16-side224-to512-quick_gelu-eps1e-05"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", type=Path, required=True, help="Parquet: image, labels, split")
    parser.add_argument("--model", type=Path, help="folder of a sentence encoder")
    parser.add_argument("--tower", action="store_true", help="only the features, of a ViT-B/16")
    parser.add_argument("--count", type=int, default=3000, help="photos of the split test")
    parser.add_argument("--words", type=int, nargs="+", default=[10, 20, 40])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--wrong-at-most", type=float, default=0.1)
    parser.add_argument("--set-aside", type=float, default=0.2)
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--cache", type=Path, help="folder to keep features in")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--speed", action="store_true")
    given = parser.parse_args()
    if given.speed and given.count < 500:
        parser.error("--speed needs --count 500 at least: a refit is of 500 answers")
    with tempfile.TemporaryDirectory() as folder:
        cache = given.cache or Path(folder)
        table = pq.read_table(given.photos)
        test = np.array(table["split"].to_pylist()) == "test"
        table = table.filter(test).slice(0, given.count)
        images = BytesImages(table["image"].to_pylist(), list(map(str, range(len(table)))))
        if given.tower:
            embedding_speed(create_backbone(TOWER), images, given.device)
            return
        if given.model is None:
            parser.error("--model is needed without --tower")
        model = ClassesAndWords(given.model, image_size=given.image_size, cache=cache)
        if given.speed:
            embedding_speed(model.backbone, images, given.device)
        photos = features_of(images, model.backbone, cache, device=given.device)
        x = photos.of([photos.digests[row] for row in range(len(table))]).double()
        carried = table["labels"].to_pylist()
        names = sorted({name for labels in carried for name in labels})
        truth = torch.tensor([[name in labels for name in names] for labels in carried]).double()
        frequent = truth.sum(dim=0).argsort(descending=True)
        for count in [40] if given.speed else given.words:
            chosen = frequent[:count].sort().values
            words = WordList.of(*(names[column] for column in chosen.tolist()))
            text = model.head([word.texts for word in words.words], x.mean(dim=0))
            if given.speed:
                refit_speed(text, x, truth[:, chosen])
            else:
                goal = given.wrong_at_most, given.set_aside
                draws = range(given.draws)
                report(
                    count,
                    [journey(text, x, truth[:, chosen], words.names, d, *goal) for d in draws],
                )


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


def embedding_speed(backbone: Backbone, images: BytesImages, device: str) -> None:
    count = len(images)
    contents = [images.content(row) for row in range(count)]
    backbone.eval()

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder:
            features_of(images, backbone, Path(folder), batch_size=BATCH, device=device)

    @torch.inference_mode()
    def by_hand() -> None:
        backbone.to(device)
        for start in range(0, count, BATCH):
            pictures = [Image.open(io.BytesIO(one)).convert("RGB") for one in
                        contents[start : start + BATCH]]  # fmt: skip
            pixels = np.stack([np.array(backbone.transform.resize(one)) for one in pictures])
            inputs = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(device)
            backbone(backbone.transform.inputs(inputs)).mean(dim=(2, 3)).cpu()
        backbone.to("cpu")

    seconds = fastest({"ours": ours, "by hand": by_hand}, perf_counter)
    print(f"features of {count:,} photos: {count / seconds['ours']:.0f} photos per second, by hand "
          f"{count / seconds['by hand']:.0f}: {seconds['by hand'] / seconds['ours']:.2f} of its "
          "speed", flush=True)  # fmt: skip


def refit_speed(text: TextHead, x: torch.Tensor, truth: torch.Tensor) -> None:
    losses = [CoinLoss.of(Targets(truth[part])) for part in (slice(0, 400), slice(400, 500))]
    ways: dict[str, Callable[[], object]] = {
        "refit": lambda: answered_head(text, x[:500], truth[:500], None, pool=x),
        "plain": lambda: solve(x[:400], losses[0], x[400:500], losses[1]),
    }
    seconds = fastest(ways, process_time)
    print(f"a refit at {truth.shape[1]} words, 500 answers and {len(x):,} photos: "
          f"{seconds['refit']:.2f} s of processor time, {seconds['refit'] / seconds['plain']:.1f} "
          "times a plain solved head", flush=True)  # fmt: skip


def fastest(
    ways: dict[str, Callable[[], object]], clock: Callable[[], float], rounds: int = 3
) -> dict[str, float]:
    """Return the least seconds of each way, taken in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = clock()
            way()
            seconds[name].append(clock() - begin)
    return {name: min(values) for name, values in seconds.items()}


if __name__ == "__main__":
    main()

"""Words on regions of the feature map, pooled over the photo: do small objects gain?

    python benchmarks/words_patches.py DATA --cache FOLDER

A word is scored on each of the 7 x 7 places of EfficientNet-Lite0's map, by the direction of
`search --text`. The mean over places is the score of the pooled features. Other ways to pool are
added to it, standardised over photos; how much they count is chosen on 500 photos of COCO's split
val, and judged on 1,500 of its split test. Small objects: 24 categories that mostly fill little of
a photo, chosen by name.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from words_data import ENCODER

from labelwise.metrics import average_precision
from labelwise.models.scoring import infer
from labelwise.photos.words import ClassesAndWords, WordList
from labelwise.pictures.memory import BytesImages

RESULTS = Path(__file__).parent / "results" / "words_patches.json"
SMALL = (
    *("bottle", "cup", "wine glass", "fork", "knife", "spoon", "sports ball", "frisbee", "kite"),
    *("baseball bat", "baseball glove", "cell phone", "remote", "mouse", "book", "clock", "tie"),
    *("traffic light", "handbag", "backpack", "apple", "orange", "carrot", "toothbrush"),
)
PHOTOS = {"val": 500, "test": 1500}
COUNTS = (0.0, 0.25, 0.5, 1.0, 2.0)  # of the other pooling beside the mean


def maps_of(data: Path, model: ClassesAndWords, cache: Path):
    """Return feature maps (n, 49, D) in half precision, labels, names and splits."""
    table = pq.read_table(data / "coco80-val-test.parquet")
    split = np.array(table["split"].to_pylist())
    rows = np.concatenate([np.flatnonzero(split == name)[:n] for name, n in PHOTOS.items()])
    some, kept = table.take(rows), cache / "patches.npy"
    names = json.loads(table.schema.metadata[b"classes"])
    labels = np.array([[name in own for name in names] for own in some["labels"].to_pylist()])
    if not kept.is_file():
        images = BytesImages(some["image"].to_pylist(), list(map(str, range(len(some)))))
        backbone, found = model.backbone, np.empty((len(rows), 49, 1280), np.float16)

        def network(values):
            return (backbone(backbone.transform.inputs(values)).flatten(2).mT.contiguous(),)

        cpu = torch.device("cpu")
        for part in infer(
            network, images, backbone.transform, rows=range(len(rows)), batch_size=50, device=cpu
        ):
            found[part.rows] = part.values[0].numpy()
        np.save(kept, found)
    return np.load(kept, mmap_mode="r"), labels, names, split[rows]


def pooled(scores: np.ndarray) -> dict[str, np.ndarray]:
    """Return ways to pool the scores (n, 49, K) of places."""
    ranked = np.sort(scores, axis=1)
    square = scores.reshape(len(scores), 7, 7, -1)
    windows = [square[:, i : i + 3, j : j + 3].mean((1, 2)) for i in range(5) for j in range(5)]
    away = scores - scores.mean((0, 1))
    soft = np.exp(away / away.std((0, 1)))
    return {
        "the best place": ranked[:, -1],
        "the best five places": ranked[:, -5:].mean(1),
        "the best window of 3 x 3": np.max(windows, axis=0),
        "a softmax over places": (soft * scores).sum(1) / soft.sum(1),
    }


def standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean(0)) / values.std(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("runs") / "words", help="for features")
    given = parser.parse_args()
    model = ClassesAndWords(given.data / ENCODER, cache=given.cache)
    maps, labels, names, split = maps_of(given.data, model, given.cache)
    mean = np.stack([one.astype(np.float32).mean(0) for one in maps])
    texts = [word.texts for word in WordList.of(*names).words]
    # the direction of a text, as of `search --text`, and the head of a run, which knows the photos
    direction = model.texts.directions(texts).numpy()
    head = model.head(texts, torch.from_numpy(mean).mean(0), torch.from_numpy(mean))
    small = [names.index(name) for name in SMALL]
    figures: dict[str, float] = {}

    def judge(name: str, base: np.ndarray, other: np.ndarray | None) -> None:
        best = 0.0
        for way, which in (("val", None), ("test", "shown")):
            rows = split == way
            tried = {}
            for count in COUNTS if which is None and other is not None else (best,):
                scores = standard(base[rows])
                if other is not None:
                    scores = scores + count * standard(other[rows])
                each = [
                    float(average_precision(scores[:, [k]], labels[rows][:, [k]]).value)
                    for k in range(len(names))
                ]
                tried[count] = (float(np.nanmean(np.array(each)[small])), float(np.nanmean(each)))
            best = max(tried, key=lambda count: tried[count][0])
        figures[f"{name}, mAP of 24 small"] = tried[best][0]
        figures[f"{name}, mAP of 80"] = tried[best][1]
        if other is not None:
            figures[f"{name}, counts"] = best

    for title, weight in (("direction", direction), ("head", head.weight.numpy())):
        scores = np.stack([one.astype(np.float32) @ weight.astype(np.float32) for one in maps])
        judge(f"{title}: mean of places", scores.mean(1), None)
        for way, values in pooled(scores).items():
            judge(f"{title}: with {way}", scores.mean(1), values)
    rounded = {name: round(value, 4) for name, value in figures.items()}
    facts = {"command": "python benchmarks/words_patches.py DATA", "figures": rounded}
    RESULTS.write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(rounded, indent=1))


if __name__ == "__main__":
    main()

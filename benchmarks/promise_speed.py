"""How long promises take: ``python benchmarks/promise_speed.py [--rows 1000000]``.

An index of made logits, drawn as those of 1,000 held-out and 1,000 validation photos are, whose
labels are drawn from the probabilities. Beside a plain search (the best 50 of a query and how many
there are), the same with an expected and a sure promise: of ``dog``, whose expected list has 3 % of
the photos and whose sure one is refused, with what would work instead, and of ``-dog``, of which
most photos are listed; the receipt that is kept of a promise;
the next photo of a check and an answer to it; a count from 150 answers (prediction-powered) over
all photos. Times are milliseconds of processor time, the median of some calls after a first one,
as machines are shared. ``--likeness`` and ``near_copies.py`` have the comparisons of photos.
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measure import record
from search import LABELS, make_index

from labelwise.decide import Answered, estimate_count
from labelwise.links import Sigmoid
from labelwise.photos import Index, answer, likeness_of
from labelwise.photos.checking import CheckSession
from labelwise.photos.receipts import add
from labelwise.predictions import Predictions
from labelwise.retrieval import Query

HELD_OUT = 1000
DOG = Query.parse("dog")
PROMISES = {"dog": {"expected": 0.3, "sure": 0.5}, "-dog": {"expected": 0.06, "sure": 0.06}}


def held_out(split, seed):
    random = np.random.default_rng(seed)
    logits = random.normal(np.log(0.03 / 0.97), 2, (HELD_OUT, len(LABELS))).astype(np.float32)
    labels = (random.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    ids = [f"{split} {row}" for row in range(HELD_OUT)]
    tensors = torch.from_numpy(logits), torch.from_numpy(labels)
    return Predictions(ids, *tensors, None, LABELS, split, Sigmoid())


def milliseconds(call, repeats=9):
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def show(what, name, value, more=""):
    print(f"{what:46s} {value:10.2f} ms  {more}", flush=True)
    record(name, value)


def measured(index, rows):
    start = time.process_time()
    likeness_of(index)
    print(f"compared with the held-out photos in {time.process_time() - start:.1f} s", flush=True)
    for text, kinds in PROMISES.items():
        query = Query.parse(text)
        plain = milliseconds(partial(answer, index, query))
        show(f"a plain search of {text}", f"plain-search{text[:-3]}", plain)
        for kind, share in kinds.items():
            promised = partial(answer, index, query, wrong_at_most=share, promise=kind)
            found = promised()
            words = f"list of {found.above:,}" if found.promised else "refused"
            taken = milliseconds(promised)
            name = f"{kind}-search{text[:-3]}"
            show(f"the same, {kind}", name, taken, f"{taken / plain:.2f}x, {words}")
    found = answer(index, DOG, wrong_at_most=0.3)
    taken = milliseconds(lambda: add(index, found), 3)
    show(f"the receipt of a list of {found.above:,}", "receipt", taken)
    start = time.process_time()
    session = CheckSession(index, DOG, wrong_at_most=0.3)
    taken = 1e3 * (time.process_time() - start)
    show(f"a check of {len(session.rows):,} photos is opened", "check-opened", taken)
    taken = milliseconds(session.next_photo)
    show("the next photo of a check", "check-next", taken)
    show("an answer", "check-answer", milliseconds(lambda: answered(session), 5))
    random = np.random.default_rng(1)
    probs = random.random(rows) ** 8
    places = np.sort(random.permutation(rows)[:150])
    values = (random.random(150) < probs[places]).astype(float)
    taken = milliseconds(lambda: estimate_count(Answered.read(probs, places, values, "")), 5)
    show("a count from 150 answers", "count-answers", taken)


def answered(session):
    photo = session.next_photo()
    session.answer(photo, "yes")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "photos.index"
        folder.mkdir()
        make_index(arguments.rows, folder)
        with Index(folder) as index:
            index.facts = index.facts.model_copy(update={"held_out": "test"})
            index.use(index.spec, held_out("test", 1), held_out("val", 2))
            measured(index, arguments.rows)


if __name__ == "__main__":
    main()

"""Indexing killed at random moments: ``python tests/kill_indexing.py --kills 50``.

Photos are added, edited, moved and removed; an update of the index starts in a process of its own
and gets SIGKILL after a random part of the time it would need. Then the index must open, answer a
query, hold for each file it knows what the model says of it, and hold every correction. At the end
an update that is not killed must give what an index made in one go has.

Every process is forked from one that has imported everything and started no thread.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
from search_setup import LABELS, picture, save_model

from labelwise.base.progress import Silent
from labelwise.learn.predictor import Predictor
from labelwise.photos import Index, update_index
from labelwise.photos import ingest as scored_files
from labelwise.photos.query import answer
from labelwise.queries import Query


def fork(work, *arguments):
    """Return the id of a child that does the work and exits with 0, or 1 after an error."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def done(work, *arguments):
    """Do the work in a child to its end; raise if it fails."""
    _, status = os.waitpid(fork(work, *arguments), 0)
    if status:
        raise SystemExit(f"{work.__name__} failed; everything is kept in {arguments[0]}")


def update(home, index="photos.index"):
    scored_files.ROWS_PER_WRITE = 4  # many moments between two writes
    options = {"model": home / "run", "batch_size": 2, "workers": 2}
    update_index(home / index, [home / "photos"], watch=Silent(), **options)


def change(home, draw, number):
    """Add, edit, move and remove some photos."""
    photos = home / "photos"
    for place in range(draw.randint(4, 12)):
        picture(photos / str(draw.randrange(5)) / f"{number}-{place}.png", draw.randrange(10**9))
    known = sorted(photos.rglob("*.png"))
    edited, moved, removed = draw.sample(known, 3)
    picture(edited, draw.randrange(10**9))
    moved.rename(moved.with_name(f"moved-{number}.png"))
    removed.unlink()


def correct(home, number):
    with Index(home / "photos.index") as index:
        if len(index):
            index.correct(number % len(index), {"dog": "present"}, who=str(number))
            with (home / "answers").open("a") as answers:
                answers.write(f"{number}\n")


def check(home, whole=False):
    """Raise unless the index holds what the model says of every file it knows."""
    if not (home / "photos.index" / "index.json").exists():
        return
    with Index(home / "photos.index") as index:
        columns = np.stack([index.store.column(k) for k in range(len(LABELS))], axis=1)
        paths = index.store.paths_of(range(len(index)))
        hashes = {row: one.hash for row, one in index.store.contents_of(paths).items()}
        files = [(row, Path(path)) for row, found in paths.items() for path in found]
        same = [
            (row, path)
            for row, path in files
            if path.exists() and hashlib.sha256(path.read_bytes()).digest() == hashes[row]
        ]
        if same:
            expected = Predictor.load(home / "run").predict([path for _, path in same]).logits
            np.testing.assert_allclose(columns[[row for row, _ in same]], expected, atol=1e-5)
        answer(index, Query.parse("dog, -beach"))
        answers = (home / "answers").read_text().split() if (home / "answers").exists() else []
        assert [one.who for one in index.store.answers.lines() if one.why != "edit"] == answers
    if whole:
        assert len(same) == len(files)
        assert sorted(path for _, path in same) == sorted((home / "photos").rglob("*.png"))


def campaign(home, kills, seed):
    draw = random.Random(seed)
    done(save, home)
    change(home, draw, 0)
    began = time.monotonic()
    done(update, home, "other.index")
    usual = time.monotonic() - began
    struck = rounds = 0
    while struck < kills:
        rounds += 1
        change(home, draw, rounds)
        child = fork(update, home)
        time.sleep(draw.uniform(0, 1.1 * usual))
        os.kill(child, signal.SIGKILL)
        struck += os.waitpid(child, 0)[1] == signal.SIGKILL
        done(check, home)
        if (home / "photos.index" / "index.json").exists():
            done(correct, home, rounds)
    done(update, home)
    done(check, home, True)
    print(f"killed {struck} of {rounds} updates; the index was whole each time")


def save(home):
    save_model(home / "run")
    (home / "photos").mkdir()
    for number in range(20):
        picture(home / "photos" / f"{number}.png", number)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp())
    campaign(home, arguments.kills, arguments.seed)
    shutil.rmtree(home)


if __name__ == "__main__":
    main()

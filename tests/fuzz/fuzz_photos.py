"""KEPT: what runs, indexes and exports keep beside their answers, and models of other programs.

What matters most is read a second time; a receipt must be the one that was kept.
"""

import io
import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from band_files import dicom, npy, tiff
from fuzz_inputs import (
    Target,
    as_json,
    damage,
    damage_json,
    damage_json_lines,
    drawn,
    of_file,
    parquet,
    saved,
)
from made_index import made_index
from PIL import Image
from safetensors.torch import save
from search_setup import LABELS, save_model
from tiny_clip import clip_folder

from labelwise.answers.agreement import LabelAnswers
from labelwise.answers.log import AnswerLog
from labelwise.base.storage import storage_at
from labelwise.base.tensors import save_tensors
from labelwise.contrib.skos import read_skos
from labelwise.decide import Promise
from labelwise.errors import LabelwiseError
from labelwise.learn.backbones.weights import architecture_of, read_state
from labelwise.models.seen_photos import HASH, _kept
from labelwise.photos import Index
from labelwise.photos.index import IndexFacts
from labelwise.photos.lists import RECEIPTS_FILE, keep_receipt, read_list_answers, receipts_of
from labelwise.photos.metadata import photo_keywords, read_facts, read_photo_metadata
from labelwise.photos.prevalence import read_answers
from labelwise.photos.shift import HeldOutPictures, likeness_of
from labelwise.photos.words import TwoTowers, WordList
from labelwise.photos.words.start import KeptAnswers
from labelwise.photos.words.text_image import TextHead
from labelwise.photos.xmp import Keyword, entries, noted, tagged, untagged
from labelwise.pictures.decode import decode
from labelwise.pictures.duplicates import WIDTH
from labelwise.pictures.multiband import open_cube
from labelwise.queries import Query
from labelwise.shards.inputs import InputRow
from labelwise.shards.scoring_task import PLAN_SCHEMA, ScoringPlan, plan_name, plan_rows, to_parquet
from labelwise.types import LabelSpace


def plan_files():
    facts = {"inputs": ["photos"], "model": "0" * 64, "batch_size": 8, "shard_rows": 2, "rows": 2}
    rows = [InputRow("a.jpg", "photos", b"a.jpg"), InputRow("b.jpg", "photos", b"t.tar", 5, 9)]
    columns = zip(PLAN_SCHEMA, zip(*rows, strict=True), strict=True)
    table = pa.table([pa.array(values, field.type) for field, values in columns], PLAN_SCHEMA)
    plan = json.dumps(facts | {"shards": 1, "decode": "cpu"}).encode()
    return {"_plan.json": plan, plan_name(0): to_parquet(table)}


def read_plan(folder):
    storage = storage_at(str(folder))
    return ScoringPlan.load(storage), plan_rows(storage, 0)


PROMISE = Promise("list", 0.9, 0.95, 40, 40, 0.95, "photos", "2026-01-01", "exact", kind="sure")
RECEIPTS = f"i.index/{RECEIPTS_FILE}"
LOGITS = np.random.default_rng(0).normal(size=(60, len(LABELS)))


def make_index(place):
    model = save_model(place.parent / "model")
    with Index(made_index(place, model, LOGITS)) as index:
        for rows in ([0, 2], [1, 2, 3]):
            keep_receipt(index, "dog", PROMISE, np.array(rows), "someone")
        likeness_of(index)
        index.store.database.seal_missing()


INDEX = saved(make_index, "i.index")


def changed_index(name, *ways):
    """Return what makes indexes of which one file was changed, as an editor or a bad disk would."""
    return lambda rng: INDEX() | {name: rng.choice(ways)(rng, INDEX()[name])}


def of_index(read):
    """Return what reads an opened index."""

    def opened(folder):
        with Index(folder / "i.index") as index:
            return read(index, folder)

    return opened


def same_receipts(read, folder):
    """Whatever was changed, receipts that are read are those that were kept; a tail can be cut."""
    kept = [(1, PROMISE, "dog", "someone"), (2, PROMISE, "dog", "someone")]
    assert [(one.number, one.promise, one.query, one.who) for one in read] == kept[: len(read)]


ANSWERS = [
    {"photo": f"{n}.jpg", "label": "dog", "state": state, "who": "a", "at": "2026-01-01"}
    for n, state in enumerate(("present", "absent", "unknown"))
]
LOOKS = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2 * WIDTH, np.float32)), WIDTH)
SEEN = {"sha256": pa.array([b"\1" * 32, b"\2" * 32], HASH), "fingerprint": LOOKS}
STRINGS = pa.list_(pa.string())
TOLD = {"digest": pa.array([b"\1", b"\2"], pa.binary()), "id": ["a.jpg", "b.jpg"]}
TOLD |= {"present": pa.array([["dog"], []], STRINGS), "absent": pa.array([[], ["cat"]], STRINGS)}
TOLD |= {"aside": [True, False]}
TIMM = {
    "config.json": b'{"architecture": "resnet18"}',
    "model.safetensors": save({"conv1.weight": torch.zeros(2, 3), "fc.bias": torch.ones(2)}),
}
SKOS = "http://www.w3.org/2004/02/skos/core#"
LINES = (
    f'<u:dog> <{SKOS}prefLabel> "dog"@en .\n<u:pet> <{SKOS}prefLabel> "p\\u00e9t \\U0001F600" .\n'
    f"<u:dog> <{SKOS}broader> <u:pet> .\n"
).encode()


def read_vocabularies(folder):
    return read_skos(folder / "v.nt")


WORDS = b"dog\ncat: a photo of a cat, a kitten\n# a comment\nsparrow; bird\nbird\n"
LOG = b"".join(as_json(one) + b"\n" for one in ANSWERS)
VOCABULARIES = {"v.nt": LINES}
KEPT = (
    Target("plan", plan_files(), read_plan),
    drawn(
        "receipts",
        changed_index(RECEIPTS, damage, damage_json_lines),
        of_index(lambda index, _: receipts_of(index)),
        same_receipts,
    ),
    Target(
        "log of answers",
        {"a.jsonl": LOG},
        lambda folder: LabelAnswers(AnswerLog(folder / "a.jsonl")),
        damage={".jsonl": lambda rng, content: damage_json_lines(rng, content) + b"\n"},
    ),
    of_file("seen photos", "seen.parquet", parquet(SEEN), _kept),
    Target(
        "kept answers",
        {"k.parquet": parquet(TOLD)},
        lambda folder: KeptAnswers.load(folder / "k.jsonl"),
    ),
    Target("timm folder", TIMM, lambda folder: (architecture_of(folder), read_state(folder))),
    Target("vocabularies", VOCABULARIES, read_vocabularies, damage={".jsonld": damage_json}),
    of_file("words", "words.txt", WORDS, WordList.read),
    drawn(
        "likeness.json",
        changed_index("i.index/likeness.json", damage_json),
        of_index(lambda index, _: likeness_of(index).sentence()),
    ),
)
OURS = {"dc": frozenset({"x"}), "lr": frozenset({"x"})}


def sidecar():
    mine = tagged(None, [keyword("grandma")]).replace(b"labelwise", b"other")
    return tagged(mine, [keyword("x", "animal")])


def keyword(label, *parents):
    return Keyword(label, 0.5, "m", "2020-01-01", parents)


def read_sidecar(folder):
    data = (folder / "a.xmp").read_bytes()
    return entries(data), noted(data), untagged(data, OURS), tagged(data, [keyword("new")])


def names_the_keyword(read, _):
    assert "new" in entries(read[-1])["dc"], "the keyword was not written"


def log_probs(index, _):
    return [index.odds(label).log_p[: len(index)].tolist() for label in range(len(index.space))]


def same_logits(read, folder):
    """Whatever was damaged, an index that answers gives the probabilities it was made with."""
    truth = -np.log1p(np.exp(-LOGITS.astype(np.float32))).T
    assert np.allclose(np.array(read), truth, atol=1e-5), "a probability changed"


SPACE = LabelSpace(("dog", "cat", "beach"))


def parses_again(query, folder):
    """A query asks the same when its own words are read again."""
    again = Query.parse(str(query), SPACE)
    assert again == query, f"{query} became {again}"


def query_files(rng):
    texts = (b'-(dog, "cat") | (beach, -cat)', b"dog<0.5, (cat | beach)", b"(" * 2000 + b"dog")
    return {"q.txt": damage(rng, rng.choice(texts))}


def read_query(folder):
    return Query.parse((folder / "q.txt").read_bytes().decode("utf-8", "replace"), SPACE)


INDEX_FACTS = b'{"format": 1, "model": "m", "held_out": "test", "decode": "cpu"}'
ESTIMATED = b"path,question,answer\na.jpg,is it?,yes\nb.jpg,is it?,no\n"
LIBRARY = (
    Target("sidecar", {"a.xmp": sidecar()}, read_sidecar, names_the_keyword),
    of_file("index.json", "index.json", INDEX_FACTS, IndexFacts.load),
    Target("index", INDEX, of_index(log_probs), same_logits),
    drawn("query", query_files, read_query, parses_again),
    of_file("answers", "a.csv", ESTIMATED, read_answers),
)
VALUES = np.arange(60, dtype=np.uint16).reshape(4, 5, 3)
GREY = np.arange(20, dtype=np.uint16).reshape(4, 5)


def read_cube(folder):
    (place,) = folder.iterdir()
    return open_cube(place.read_bytes(), place.name)


@cache
def photo(kind):
    image = Image.new("RGB", (8, 6), "red")
    exif = image.getexif()
    exif[0x010F], exif[0x0110], exif[0x9C9E] = "Maker", "Model 1", "a;b".encode("utf-16-le")
    gps = exif.get_ifd(0x8825)
    gps.update({1: "N", 2: (48.0, 8.0, 0.0), 3: "W", 4: (11.0, 34.0, 30.0)})
    packet = tagged(None, [Keyword("dog", 0.5, "m", "2020-01-01", ())])
    stream = io.BytesIO()
    image.save(stream, kind, exif=exif, xmp=packet)
    return stream.getvalue()


def read_photo(folder):
    (place,) = folder.iterdir()
    content = place.read_bytes()
    found = read_facts(content), photo_keywords(place)
    try:
        return *found, read_photo_metadata(place), decode(content, place.name).size
    except LabelwiseError:
        return *found, None, None


def is_a_photo(read, folder):
    facts, (words, _), _, size = read
    for value, most in ((facts.latitude, 90), (facts.longitude, 180)):
        assert value is None or abs(value) <= most
    assert facts.camera is None or facts.camera.isprintable()
    assert all(level.strip() == level and level for levels in words for level in levels)
    if size is not None:
        with Image.open(*folder.iterdir()) as image:
            assert sorted(size) == sorted(image.size)  # it may be turned


STRANGE = (
    *(torch.zeros(0), torch.tensor(1.5), torch.tensor([[float("nan")]]), torch.ones(2, 3, 4)),
    *(torch.ones(3).bfloat16(), torch.tensor([-1, 10**12]), torch.tensor([True])),
    torch.full((2, 3), 300, dtype=torch.int64),
)


def tensors_with(rng, good):
    """Return a file of tensors, sealed, one of them strange or gone; or damaged bytes."""
    changed = dict(good)
    name = rng.choice(sorted(changed))
    if rng.random() < 0.15:
        changed.pop(name)
    else:
        changed[name] = rng.choice(STRANGE)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "t"
        save_tensors(place, changed if rng.random() < 0.8 else good)
        content = place.read_bytes()
    return damage(rng, content) if rng.random() < 0.2 else content


SHAPES = {"features": (4, 3), "looks": (4, 2), "fitted": (5, 3)}
PICTURES_KEPT = {name: torch.ones(shape, dtype=torch.float16) for name, shape in SHAPES.items()}
PICTURES_KEPT |= {"rows": torch.arange(4), "weights": torch.full((32,), 7, dtype=torch.uint8)}


def read_head(folder):
    head = TextHead.load(folder / "h")
    return head.scores(torch.ones(2, head.weight.shape[0]))


def read_model_of_words(folder):
    towers = TwoTowers(folder)
    with torch.no_grad():
        photos = torch.zeros(1, 3, towers.image.transform.size, towers.image.transform.size)
        return towers.image(photos), towers.text(torch.tensor([towers.tokens.of("a dog")]))


ASKED = b"path,answer,query\n/p/0.jpg,yes,dog\n/p/2.jpg,no,dog\n/p/3.jpg,unsure,dog\n"


def read_asked(index, folder):
    return read_list_answers(index, folder / "asked.csv")


KINDS = {"jpeg": "a.jpg", "png": "a.png", "webp": "a.webp", "tiff": "b.tif"}
PICTURES = (
    Target("npy cube", {"a.npy": npy(VALUES)}, read_cube),
    Target("tiff cube", {"a.tif": tiff(VALUES, ("a", "b", "c"), 7)}, read_cube),
    Target("tiff", {"a.tif": tiff(GREY)}, read_cube),
    Target("dicom", {"a.dcm": dicom(GREY)}, read_cube),
    *(
        Target(f"{kind} photo", {file: photo(kind.upper())}, read_photo, is_a_photo)
        for kind, file in KINDS.items()
    ),
    drawn(
        "held-out pictures",
        lambda rng: {"p": tensors_with(rng, PICTURES_KEPT)},
        lambda folder: HeldOutPictures.load(folder / "p"),
    ),
    drawn(
        "text head",
        lambda rng: {"h": tensors_with(rng, {"weight": torch.ones(3, 2), "bias": torch.zeros(2)})},
        read_head,
    ),
    Target("model of words", clip_folder, read_model_of_words),
    drawn(
        "answers about lists",
        lambda rng: INDEX() | {"asked.csv": damage(rng, ASKED)},
        of_index(read_asked),
    ),
)

"""Files that a stranger changed or made: refused in a sentence, whatever their numbers claim.

Each ended in an internal error, or was read as something else; or it brought what an attacker
wants: a changed file outside the new folder, a full memory, a formula in a spreadsheet.
Oracles: IEEE 754, the same pixels in a plain file, the module ``csv``, the bytes asked for at most.
"""

import csv
import io
import json
import logging
import math
import os
import sqlite3
import struct
import sys
import threading
import tracemalloc
import zlib
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pydicom
import pytest
import torch
from band_files import dicom, npy, tiff
from forged import facts_of, rewrite
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.uid import DeflatedExplicitVRLittleEndian, RLELossless
from safetensors.torch import load as tensors_of
from safetensors.torch import save as as_bytes
from search_setup import LABELS, picture, save_model, twelve_photos
from tifffile import TiffFile
from tiny_clip import clip_folder
from typed import must_run

from labelwise.answers.agreement import write_table
from labelwise.answers.log import AnswerLog
from labelwise.base.progress import Silent
from labelwise.base.storage import storage_at
from labelwise.base.table_files import read_parquet, write_csv
from labelwise.base.tensors import load_tensors, save_tensors
from labelwise.base.yaml_values import read_yaml
from labelwise.calibration import beta, histogram, isotonic, platt, temperature
from labelwise.contrib.camtrap import is_inside
from labelwise.contrib.skos import read_skos
from labelwise.decide import AtMost, ExpectedF, Promise, Threshold
from labelwise.errors import CheckpointError, DataError, ImageError, LabelwiseError, SettingsError
from labelwise.evaluation import Evaluation
from labelwise.eyes.eye import Eye
from labelwise.learn.methods import link_from_spec, link_to_spec, rule_from_spec, rule_to_spec
from labelwise.learn.objectives import PhiLink, QuasibinaryLink, SPALink
from labelwise.links import Link, Sigmoid, Softmax, check_log_probs
from labelwise.models import ModelSpec
from labelwise.models.graph_file import Facts, content_of
from labelwise.models.run_folder import Journal, RunFolder
from labelwise.models.scoring import scored
from labelwise.photos.database import Database, create_database, file_hash, open_database
from labelwise.photos.index import Index, IndexFacts
from labelwise.photos.ingest import _content, update_index
from labelwise.photos.metadata import PhotoFacts, read_facts, read_photo_metadata
from labelwise.photos.shift import HeldOutPictures
from labelwise.photos.words import TwoTowers
from labelwise.photos.words.start import KeptAnswers, PhotoAnswer
from labelwise.photos.words.text_image import TextHead
from labelwise.pictures import Transform
from labelwise.pictures import multiband as cubes
from labelwise.pictures.decode import decode, find_images
from labelwise.pictures.multiband import open_cube
from labelwise.pictures.sources import FileImages
from labelwise.predictions import Predictions
from labelwise.scores.aggregating import aggregate_table
from labelwise.scores.embeddings import Texts, read_prompts
from labelwise.scores.read import read_detections
from labelwise.shards.inputs import InputRow, find_rows
from labelwise.shards.scoring_task import PLAN_SCHEMA, ScoringPlan, plan_name, plan_rows
from labelwise.tables import LabelTable, load, open_table
from labelwise.tables.camera_results import cut_crops, read_camera_results, with_classes
from labelwise.tables.export import export
from labelwise.tables.rows import parse_xml
from labelwise.taxonomy import Taxonomy
from labelwise.training.checkpoint import load_latest
from labelwise.training.checkpoint import save as save_checkpoint
from labelwise.training.solved import contents_of
from labelwise.types import LabelSpace

SKOS = "http://www.w3.org/2004/02/skos/core#"
PLAN = {"inputs": ["photos"], "model": "m", "batch_size": 8, "shard_rows": 2}


def test_a_plan_of_other_types_and_rows_without_text_are_damaged(tmp_path):
    (tmp_path / "_plan.json").write_text(json.dumps(PLAN))
    assert ScoringPlan.load(storage_at(str(tmp_path))) == ScoringPlan(("photos",), "m", 8, 2)
    for change in ({"inputs": "photos"}, {"rows": "2"}, {"more": 1}):
        (tmp_path / "_plan.json").write_text(json.dumps(PLAN | change))
        with pytest.raises(CheckpointError, match="damaged"):
            ScoringPlan.load(storage_at(str(tmp_path)))
    place, storage = tmp_path / plan_name(0), storage_at(str(tmp_path))
    place.parent.mkdir()
    rows = [InputRow("parus.jpg", "photos", b"a.jpg")]
    columns = zip(PLAN_SCHEMA, zip(*rows, strict=True), strict=True)
    table = pa.table([pa.array(values, field.type) for field, values in columns], PLAN_SCHEMA)
    pq.write_table(table, place, compression="none")
    assert plan_rows(storage, 0) == rows
    changed = place.read_bytes().replace(b"parus", b"p\xecrus")
    pq.write_table(pa.table({"id": [1]}), place)
    for content in (changed, place.read_bytes(), b"PAR1", b""):
        place.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            plan_rows(storage, 0)


def test_an_answer_holds_text_and_those_of_0_2_are_read_or_named(tmp_path):
    whole = dict.fromkeys(("photo", "label", "who", "at"), "a") | {"state": "present"}
    for field in ("photo", "label", "who"):
        (tmp_path / "a.jsonl").write_text(json.dumps(whole | {field: ["a"]}) + "\n")
        with pytest.raises(DataError, match="not an answer log"):
            AnswerLog(tmp_path / "a.jsonl").lines()
    (tmp_path / "a.jsonl").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"a\.jsonl: not JSON"):
        assert open_table(tmp_path / "a.jsonl").holds
    place = tmp_path / "k.parquet"
    row = {"digest": b"1", "id": "a", "present": ["dog"], "absent": ["cat"], "aside": True}
    pq.write_table(pa.Table.from_pylist([row]), place)
    told = PhotoAnswer("a", {"dog": True, "cat": False}, True)
    assert KeptAnswers.load(tmp_path / "k.jsonl").photos == {b"1": told}
    for odd in (pa.table({"digest": ["1"]}), pa.Table.from_pylist([row | {"present": [None]}])):
        pq.write_table(odd, place)
        with pytest.raises(DataError, match=r"can(not)? be read"):
            KeptAnswers.load(tmp_path / "k.jsonl")


def test_an_escape_is_a_letter(tmp_path):
    for escape in ("\\UFFFFFFFF", "\\uD800"):
        place = tmp_path / "v.nt"
        place.write_text(f'<u:dog> <{SKOS}prefLabel> "{escape}" .\n')
        with pytest.raises(DataError, match="line 1"):
            read_skos(place)


def test_a_database_whose_tables_have_no_names_is_damaged(tmp_path):
    """SQLite repeats the name in its message, and Python could not read that."""
    place = tmp_path / "photos.sqlite"
    create_database(place)
    open_database(place).close()
    with closing(sqlite3.connect(place)) as database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET name = CAST(X'd9' AS TEXT), sql = 'x'")
        database.commit()
    with pytest.raises(CheckpointError, match="it is malformed"):
        open_database(place)


def test_labels_are_distinct_and_a_transform_has_known_entries(tmp_path):
    model = save_model(tmp_path / "model")
    place = tmp_path / "model" / "model.json"
    assert ModelSpec.load(place, tried=True).labels == LABELS
    rewrite(place, labels=[LABELS[1], *LABELS[1:]])
    with pytest.raises(CheckpointError, match="must be distinct"):
        ModelSpec.load(model / "model.json", tried=True)
    facts = Facts(LabelSpace(LABELS), Sigmoid(), Threshold(0.5), Transform(32), "bce", "0" * 64)
    stated = facts.metadata()
    assert Facts.read(stated).transform == Transform(32)
    stated["transform"] = json.dumps(Transform(32).spec() | {"gamma": 2})
    with pytest.raises(ValueError, match="must not have the entry 'gamma'"):
        Facts.read(stated)


def test_names_of_units_that_end_in_a_null_are_not_joined(tmp_path):
    """NumPy leaves a null out at the end of a text: two units would become one."""
    table = tmp_path / "s.csv"
    table.write_text("id,burst,score:x\na,1,0.5\nb,1 ,0.5\n")
    assert len(aggregate_table(table, "probs", ["burst"], "any").names) == 2
    columns = {"id": ["a", "b"], "burst": ["1", "1\0"], "score:x": [0.5, 0.5]}
    pq.write_table(pa.table(columns), tmp_path / "s.parquet")
    with pytest.raises(DataError, match="must not hold a null"):
        aggregate_table(tmp_path / "s.parquet", "probs", ["burst"], "any")


HALF = {"dtype": np.float16}
PICTURES = {
    "rows": np.arange(4),
    "features": np.ones((4, 3), **HALF),
    "looks": np.ones((4, 2), **HALF),
    "fitted": np.ones((5, 3), **HALF),
    "trained": np.full((5, 32), 7, np.uint8),
    "weights": np.full(32, 7, np.uint8),
}


NOT_HELD_OUT = {
    "rows": (np.array([0, 1, 2, -1]), np.arange(4.0), np.arange(3)),
    "features": (np.ones((4, 3), np.float32), np.ones(4, **HALF), np.array([{}])),
    "looks": (np.ones((3, 2), **HALF),),
    "fitted": (np.ones((5, 2), **HALF), np.full((5, 3), np.nan, **HALF)),
    "trained": (np.ones((5, 31), np.uint8), np.ones((5, 32)), np.ones(32, np.uint8)),
    "weights": (np.full(32, 300), np.ones((2, 2)), np.ones(3, np.uint8)),
}


def test_held_out_pictures_and_heads_of_words_that_do_not_fit(tmp_path):
    path = tmp_path / "p.npz"
    np.savez(path, **PICTURES)
    assert HeldOutPictures.load(path) is not None
    np.savez_compressed(path, **PICTURES)  # a bomb would be so
    assert HeldOutPictures.load(path) is None
    for name, values in NOT_HELD_OUT.items():
        for value in values:
            np.savez(path, **PICTURES | {name: value})
            assert HeldOutPictures.load(path) is None, name
    weight, bias = torch.ones(3, 2), torch.zeros(2)
    save_tensors(tmp_path / "h", {"weight": weight, "bias": bias})
    assert TextHead.load(tmp_path / "h").scores(np.ones((1, 3))).tolist() == [[3, 3]]
    odd = [(one, bias) for one in (torch.ones(3, 2, 2), weight.long(), weight * torch.nan)]
    for pair in [*odd, (weight, torch.ones(3)), (weight, torch.tensor(1.0))]:
        save_tensors(tmp_path / "h", dict(zip(("weight", "bias"), pair, strict=True)))
        with pytest.raises(CheckpointError, match="must hold a weight"):
            TextHead.load(tmp_path / "h")
    entry = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}
    changes = ({"dtype": "X9"}, {"shape": [1 << 60]}, {"data_offsets": [0, 8]}, {"shape": 3.5})
    for stated in ([], {"weight": 3}, *({"weight": entry | change} for change in changes)):
        text = json.dumps(stated).encode()
        (tmp_path / "h").write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
        with pytest.raises(CheckpointError, match="is not a readable safetensors file"):
            TextHead.load(tmp_path / "h")


def clip(folder, state=None, **changes):
    """Write the model; entries of its two JSON files may be others, and tensors of its weights."""
    for name, content in clip_folder().items():
        if name.endswith("config.json"):
            content = json.dumps(json.loads(content) | changes).encode()
        if name == "model.safetensors":
            content = as_bytes(tensors_of(content) | (state or {}))
        (folder / name).write_bytes(content)
    return folder


CHANGED = [
    {"vision_config": "x"},
    *({"vision_config": {"num_attention_heads": one}} for one in ("many", 0)),
    {"text_config": {"num_attention_heads": 3}},
    *({"text_config": {"num_attention_heads": 2, "layer_norm_eps": one}} for one in ("nan", -1)),
    *({"image_mean": 0.5}, {"image_std": [0.5, 0.5, []]}, {"image_std": [0, 0, 0]}),
    *({"size": {"shortest_edge": one}} for one in (0, 1e999)),
    {"state": {"visual_projection.weight": torch.full((8, 8), torch.nan)}},
    {"state": {"vision_model.embeddings.patch_embedding.weight": torch.ones(3)}},
    *({"state": {"logit_scale": one}} for one in (torch.ones(2), torch.tensor(1e9))),
]


def test_a_model_of_words_or_its_tokenizer_that_a_stranger_changed(tmp_path):
    towers = TwoTowers(clip(tmp_path))  # as it is
    assert towers.text(torch.tensor([towers.tokens.of("a dog")])).isfinite().all()
    assert towers.scale == pytest.approx(np.e)
    for changes in CHANGED:
        clip(tmp_path, **changes)
        with pytest.raises(SettingsError) as caught:
            TwoTowers(tmp_path)
        assert "\n" not in str(caught.value)
    tokens = TwoTowers(with_tokenizer(tmp_path, lambda f: f.update(unk_token="nowhere"))).tokens
    with pytest.raises(DataError, match="tokenizer cannot read 'a zebra'"):
        tokens.of("a zebra")
    with_tokenizer(tmp_path, lambda facts: facts["vocab"].update(dog=6))  # of six, from 0
    with pytest.raises(SettingsError, match="has 7 tokens and the model knows only 6"):
        TwoTowers(tmp_path)


def with_tokenizer(folder, change):
    """Write the model with another tokenizer, of which ``change`` is given the entry ``model``."""
    place = clip(folder) / "tokenizer.json"
    facts = json.loads(place.read_text())
    change(facts["model"])
    place.write_text(json.dumps(facts))
    return folder


def test_a_cube_of_negative_sides_and_an_unknown_syntax(tmp_path):
    content = npy(np.zeros((4, 1), np.uint8))
    assert open_cube(content, "a.npy").values.shape == (4, 1, 1)
    with pytest.raises(ImageError, match="a cube must be"):
        open_cube(content.replace(b"(4, 1)", b"(-1,1)"), "a.npy")
    content = dicom(np.zeros((4, 4), np.uint16))
    syntax = content.replace(b"1.2.840.10008.1.2.1", b"1.2.840.10008.\n.2.1")
    with pytest.raises(ImageError, match=r"its pixels \(an unknown syntax\) are not read"):
        open_cube(syntax, "a.dcm")


def test_a_damaged_tiff_does_not_write_on_the_terminal(capfd, monkeypatch):
    for name in (None, "tifffile"):  # as in a program that has set up no log
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    cubes._keep_quiet.cache_clear()
    content = bytearray(tiff(np.zeros((4, 4), np.uint16)))
    content[48:50] = bytes(2)  # the type of a tag
    with TiffFile(io.BytesIO(content)) as file:
        assert file.pages
    assert "invalid data type" in capfd.readouterr().err
    with suppress(ImageError):
        open_cube(bytes(content), "a.tif")
    assert capfd.readouterr() == ("", "")


def test_a_header_of_more_pixels_than_there_can_be_says_nothing(tmp_path):
    place = tmp_path / "a.webp"
    exif = Image.Exif()
    exif[0x010F] = "Maker"
    Image.new("RGB", (8, 6)).save(place, exif=exif)
    content = place.read_bytes()
    assert read_facts(content).camera == "Maker"
    at = content.index(b"VP8X") + 12
    claiming = content[:at] + b"\xff" * 6 + content[at + 6 :]  # 2^24 pixels each way
    assert read_facts(claiming) == PhotoFacts()


def test_a_checkpoint_whose_sum_was_blanked_is_damaged(tmp_path):
    save_checkpoint(tmp_path, {"w": torch.ones(1)}, {"step": 1, "best_step": None})
    (place,) = tmp_path.glob("*/state.json")
    facts = json.loads(place.read_text())
    place.write_text(json.dumps(facts | {"step": "*", "sha256": None}))
    with pytest.raises(LabelwiseError, match="it is not what was written"):
        load_latest(tmp_path)


def test_a_package_cannot_name_files_outside_it():
    elsewhere = ["", "/a", "../a", "a/../../b", "C:\\a", "..\\a", "\\\\host\\a", "a\nb", "a\0"]
    for place in ("a.csv", "tables/a.csv", *elsewhere, "s3://a"):
        assert is_inside(place) == place.endswith(".csv"), place


def results(folder, file, **more):
    box = {"category": "1", "conf": 0.9, "bbox": [0, 0, 1, 1]}
    facts = {"images": [{"file": file, "detections": [box]}], "detection_categories": {"1": "x"}}
    path = folder / "md.json"
    path.write_text(json.dumps(facts | more))
    return path


def test_crops_are_cut_below_the_folder_alone(tmp_path):
    root = tmp_path / "photos"
    (root / "a").mkdir(parents=True)
    Image.new("L", (20, 10)).save(tmp_path / "secret.png")
    for file in ("../secret.png", "a/../../secret.png", f"{tmp_path}/secret.png"):
        found = read_camera_results(results(tmp_path, file))
        with pytest.raises(DataError, match=r"secret\.png is not below .*--root"):
            cut_crops(found, root, tmp_path / "out")
        assert not list((tmp_path / "out").glob("*.png"))
    assert cut_crops(found, tmp_path, tmp_path / "out") == 1


def test_crops_are_cut_of_boxes_with_an_area_and_of_no_picture_too_large(tmp_path, monkeypatch):
    Image.new("L", (20, 10)).save(tmp_path / "a.png")
    boxes = [[0.2, 0.2, 0, 0.5], [0.2, 0.2, 0.5, 0], [1, 0, 0.1, 0.1], [0, 1, 0.1, 0.1]]
    listed = [{"category": "1", "conf": 0.9, "bbox": box} for box in [*boxes, [0, 0, 0.01, 1]]]
    images = [{"file": "a.png", "detections": listed}]
    found = read_camera_results(results(tmp_path, "a.png", images=images))
    assert cut_crops(found, tmp_path, tmp_path / "out") == 1
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == ["000000-4.png"]
    Image.new("L", (20, 10)).save(tmp_path / "a.png")
    monkeypatch.setenv("LABELWISE_MAX_PIXELS", "199")
    with pytest.raises(DataError, match=r"more than .* pixels"):
        cut_crops(read_camera_results(results(tmp_path, "a.png")), tmp_path, tmp_path / "out")


def test_classes_are_put_at_the_detection_that_was_cut(tmp_path):
    content = json.loads(results(tmp_path, "a.png").read_text())
    row, classes = {"path": "c.png", "image": "a.png"}, {"c.png": {"fox": 0.5}}
    for number in ("-1", "", "x", "1", "٣"):
        with pytest.raises(DataError, match="cut the crops again"):
            with_classes(content, [row | {"detection": number}], classes)
    assert with_classes(content, [row | {"detection": "0"}], classes)[1] == 1
    facts = {"filepath": "a", "classifications": {"classes": [], "scores": []}}
    for detections in (7, {"a": 1}):
        told = {"predictions": [facts | {"detections": detections}]}
        (tmp_path / "s.json").write_text(json.dumps(told))
        with pytest.raises(DataError, match=r"detections': .* valid array"):
            read_camera_results(tmp_path / "s.json")


def test_columns_that_hold_something_else_and_text_that_is_not_text(tmp_path):
    pq.write_table(pa.table(CALL), tmp_path / "d.parquet")
    assert read_detections(tmp_path / "d.parquet").names == ("Parus",)
    for name in CALL:
        pq.write_table(pa.table(CALL | {name: [{"a": 1}]}), tmp_path / "d.parquet")
        with pytest.raises(DataError, match=r"the column .* must hold"):
            read_detections(tmp_path / "d.parquet")
    # A byte changed in the file, which Arrow does not look at until a text is made of it.
    calls = tmp_path / "d.parquet"
    for old, new in ((b"Parus", b"P\xecrus"), (b"Scientific name", b"Scientific\xecname")):
        pq.write_table(pa.table(CALL), calls, compression="none")
        calls.write_bytes(calls.read_bytes().replace(old, new))
        with pytest.raises(DataError):
            read_detections(calls)


CALL = {"Start (s)": [0.0], "Confidence": [0.5], "File": ["a.wav"]}
CALL |= {"Scientific name": ["Parus"], "Common name": ["Tit"]}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be"])
def test_entities_are_not_allowed_in_any_encoding(encoding):
    """Expat knows four encodings, and in UTF-16 every other byte is zero."""
    head = f'<?xml version="1.0" encoding="{encoding[:6].rstrip("-")}"?>'
    mark = "" if encoding in ("utf-8", "utf-16") else "\ufeff"
    plain = f"{mark}{head}<a>b</a>".encode(encoding)
    assert parse_xml(plain, "a.xml").text == "b"
    forged = f'{mark}{head}<!DOCTYPE a [<!ENTITY b "b">]><a>&b;</a>'.encode(encoding)
    with pytest.raises(DataError, match="entities are not allowed"):
        parse_xml(forged, "a.xml")


BAD = (math.nan, math.inf, -math.inf, 1e300, 10**400)
TOO_LONG = (2**64, -(2**63))  # integers that arrays do not take: predict ended in OverflowError


def fitted(fit):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(300, 3, generator=generator)
    labels = (torch.rand(300, 3, generator=generator) < logits.sigmoid()).float()
    return fit(logits, labels, Sigmoid())


LINKS = [
    Softmax(2.0),
    PhiLink(1.0, 2.0),
    SPALink(),
    QuasibinaryLink(1.5),
    *(fitted(fit) for fit in (platt, beta, isotonic, histogram, temperature)),
]
RULES = [Threshold(0.5), Threshold((0.1, 0.2, 0.3)), ExpectedF(2.0), AtMost(Threshold(0.5), 2)]


def places(value, path=()):
    """Yield the path of every number in plain data."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from places(child, (*path, key))
    elif isinstance(value, list | tuple):
        for key, child in enumerate(value):
            yield from places(child, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def planted(value, path, bad):
    """Return a copy of plain data with another number at a path."""
    value = json.loads(json.dumps(value))
    node = value
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = bad
    return value


def planted_in(made, bad):
    """Yield how a link or rule is read with a bad number at each of some 25 places."""
    is_link = isinstance(made, Link)
    spec = (link_to_spec if is_link else rule_to_spec)(made)
    read = link_from_spec if is_link else rule_from_spec
    read(json.loads(json.dumps(spec)))
    found = list(places(spec))
    assert found
    for path in found[:: max(1, len(found) // 25)]:
        yield lambda path=path: read(planted(spec, path, bad))


@pytest.mark.parametrize("made", [*LINKS, *RULES], ids=lambda made: made.kind)
def test_every_number_of_a_link_or_rule_must_be_a_finite_number(made):
    """A threshold of "1e999" was infinite: no photo had a label any more."""
    wrong = [(bad, "must be finite") for bad in BAD[:4]]
    wrong += [(bad, r"at most 2\^53") for bad in (*BAD[4:], *TOO_LONG)]
    for bad, words in [*wrong, *((bad, "cannot be made") for bad in ("1e999", "0.5", True, False))]:
        for reading in planted_in(made, bad):
            with pytest.raises(LabelwiseError, match=words):
                reading()


def test_a_whole_number_is_as_good_as_its_fraction():
    """The square of a beta of 2**53 is no number that an array takes."""
    probs = torch.rand(20, 3, generator=torch.Generator().manual_seed(2))
    for whole in (2, 2**31, 2**53):
        read = rule_from_spec(json.loads(json.dumps({"kind": "expected-f", "beta": whole})))
        assert torch.equal(read(probs), ExpectedF(float(whole))(probs))


PROMISE = Promise("recall", 0.9, 0.95, 200, 150, 0.93, "test photos", "2026-01-01", "exact")


@pytest.mark.parametrize("bad", BAD)
def test_a_model_with_a_number_that_is_none_is_not_loaded(tmp_path, bad):
    save_model(tmp_path)
    file = tmp_path / "model.json"
    good = facts_of(file) | {"promises": [PROMISE.spec()]}
    file.write_text(json.dumps(good))
    assert ModelSpec.load(file).promises == (PROMISE.spec(),)
    for part in ("rule", "promises", "transform"):
        for path in places(good[part]):
            file.write_text(json.dumps(planted(good, (part, *path), bad)))
            with pytest.raises(CheckpointError, match=r"model\.json is not usable"):
                ModelSpec.load(file)
    with pytest.raises(ValueError, match="finite"):
        Transform(8, mean=(0.5, math.nan, 0.5))


def test_predict_with_a_nan_in_the_link_says_so_and_writes_nothing(tmp_path, warm_commands):
    model = save_model(tmp_path / "model")
    picture(tmp_path / "a.png", 1)
    facts = facts_of(model / "model.json")
    link = {"kind": "platt", "link": {"kind": "sigmoid"}, "slope": [1.0] * 4}
    facts["link"] = link | {"offset": [0.0, math.nan, 0.0, 0.0], "limit": 50.0}
    (model / "model.json").write_text(json.dumps(facts))
    done = warm_commands.run(["predict", "model", "a.png", "-o", "out.csv"], tmp_path)
    assert done.returncode == 1
    assert "every number of the link must be finite, got nan at 'offset.1'" in done.stderr
    assert not (tmp_path / "out.csv").exists()
    parts = {"link": NeverNumbers(), "rule": Threshold(0.5)}
    damaged = SimpleNamespace(space=LabelSpace(("a", "b")), **parts)
    with pytest.raises(CheckpointError, match="6 of 6 probabilities are not numbers"):
        scored(damaged, torch.zeros(3, 2))
    pair = torch.zeros(2), torch.tensor([0.0, -math.inf])  # certain is a number
    assert check_log_probs(*pair) == pair


class NeverNumbers(Link):
    """A link that answers NaN, as a damaged one inside a process would."""

    kind = "never-numbers"

    def log_probs(self, logits):
        return logits * math.nan, logits


def test_predictions_with_a_nan_name_the_row(tmp_path):
    path = tmp_path / "p.parquet"
    logits = torch.tensor([[0.0, math.inf], [1.0, -2.0]])  # certain is a number
    truth = torch.tensor([[0.0, 1.0], [1.0, 0.5]])
    good = Predictions(["a", "b"], logits, truth, None, ("x", "y"), "test", Sigmoid())
    good.save(path)
    assert np.array_equal(Predictions.load(path).logits, good.logits)
    table = pq.read_table(path)
    for column, value, words in (
        ("logits", math.nan, "logits: row 2 must hold numbers, got nan"),
        ("labels", math.nan, "labels: row 2 must hold numbers between 0 and 1"),
        ("labels", 7.0, "labels: row 2 must hold numbers between 0 and 1"),
    ):
        values = pa.array([table[column][0].as_py(), [1.0, value]], table.schema.field(column).type)
        place = table.column_names.index(column)
        pq.write_table(table.set_column(place, column, values), path)
        with pytest.raises(CheckpointError, match=words):
            Predictions.load(path)


GREY = np.arange(20, dtype=np.uint16).reshape(4, 5)
HEAD = 144  # bytes up to the end of the length of the file's own facts, the last four of these


def deflated(more: int) -> bytes:
    """Return a deflated DICOM file of GREY, with a private field of so many zeros behind it."""
    file, stream = pydicom.dcmread(io.BytesIO(dicom(GREY))), io.BytesIO()
    file.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    file.save_as(stream, enforce_file_format=True)
    whole = stream.getvalue()
    start = HEAD + struct.unpack("<I", whole[HEAD - 4 : HEAD])[0]
    fields = zlib.decompress(whole[start:], -zlib.MAX_WBITS)
    fields += struct.pack("<HH2sHI", 0x7FE3, 0x10, b"OB", 0, more) + bytes(more)
    deflating = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return whole[:start] + deflating.compress(fields) + deflating.flush()


def rle(rows: int, columns: int) -> bytes:
    """Return a DICOM file that says it has so many values, and holds next to none."""
    file, stream = pydicom.dcmread(io.BytesIO(dicom(GREY))), io.BytesIO()
    file.Rows, file.Columns = rows, columns
    file.file_meta.TransferSyntaxUID = RLELossless
    frame = struct.pack("<16I", 2, *(64 + 2 * n for n in range(15))) + b"\x81\x00" * 2
    file.PixelData = encapsulate([frame])
    file["PixelData"].is_undefined_length = True
    file.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def heic(*claimed: int) -> bytes:
    """Return a HEIC photo of 64 x 64 that claims another size."""
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    stream = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(stream, "HEIF")
    head, field, rest = stream.getvalue().partition(b"ispe")
    assert struct.unpack(">4xII", rest[:12]) == (64, 64)
    return head + field + rest[:4] + struct.pack(">II", *claimed) + rest[12:]


def most_memory(read, content, name, sentence=None) -> int:
    """Return the most memory asked for until a file was read, or refused in this sentence."""
    tracemalloc.start()
    with pytest.raises(ImageError, match=sentence) if sentence else nullcontext():
        read(content, name)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_deflated_dicom_is_read_as_the_plain_one_or_refused_before_it_is_too_large(monkeypatch):
    monkeypatch.setenv("LABELWISE_MAX_PIXELS", "1000000")
    for more in (0, 2_900_000):
        assert np.array_equal(open_cube(deflated(more), "a.dcm").values[:, :, 0], GREY)
    monkeypatch.setenv("LABELWISE_MAX_PIXELS", "1000000")
    bomb = deflated(40_000_000)
    assert len(bomb) < 100_000
    sentence = "inflated, it has more than 3,000,000 bytes"
    assert most_memory(open_cube, bomb, "a.dcm", sentence) < 10_000_000


def test_dicom_that_holds_less_than_it_says_is_refused():
    most = 5 * 3000 * 3000  # as a true one of that size
    assert most_memory(open_cube, rle(3000, 3000), "a.dcm", r"a\.dcm") < most
    most_memory(open_cube, rle(60_000, 60_000), "a.dcm", "more than 89,478,485 pixels")


def test_a_heic_photo_that_lies_about_its_size_is_refused():
    assert decode(heic(64, 64), "a.heic").size == (64, 64)
    many, broken = "more than 89,478,485 pixels", "cannot be read"
    claims = [((60_000, 60_000), many), ((2**31 - 1, 2), many), ((9000, 9000), broken)]
    claims += [((1, 1), broken), *(((side, side), "not an image") for side in (0, 2**32 - 1))]
    for claimed, sentence in claims:
        assert most_memory(decode, heic(*claimed), "a.heic", sentence) < 10_000_000


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_alpha_is_laid_on_white_in_strips_as_in_one_piece(mode):
    """Pictures higher than a strip; the layers of a whole one took 12 bytes a pixel more."""
    values = np.random.default_rng(0).integers(0, 256, (1100, 7, 4), np.uint8)
    image, stream = Image.fromarray(values).convert(mode), io.BytesIO()
    image.save(stream, "PNG", **({"transparency": 3} if mode == "P" else {}))
    layer = Image.open(stream).convert("RGBA")
    whole = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    assert np.array_equal(np.asarray(decode(stream.getvalue(), "a.png")), np.asarray(whole))


def test_deep_grey_takes_few_bytes_a_pixel():
    stream = io.BytesIO()
    Image.fromarray(np.full((1000, 1000), 4096, np.uint16)).save(stream, "PNG")
    decode(stream.getvalue(), "a.png")  # what is loaded once
    assert most_memory(decode, stream.getvalue(), "a.png") < 8e6
    assert np.asarray(decode(stream.getvalue(), "a.png"))[0, 0].tolist() == [16] * 3


FORMULAS = ["=1+1", "=cmd|' /C calc'!A0", "-beach", "+33", "@SUM(A1)", "'=quoted", "''=twice"]
NAMES = [*(name for name in FORMULAS if "|" not in name), "'tis", "''", "dog"]


def cells_of(path):
    """Return all cells of a table, none of which may be a formula."""
    mark = "\t" if path.suffix == ".tsv" else ","
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream, delimiter=mark))
    assert not [cell for row in rows for cell in row if cell[:1] in tuple("=+-@\t\r")]
    return rows


@pytest.mark.parametrize("form", ["lists", "a label never occurs", "a label looks like no label"])
@pytest.mark.parametrize("name", ["table.csv", "table.tsv"])
def test_a_label_table_is_read_as_it_was_made(tmp_path, name, form):
    names = [one for one in NAMES if one != "''"] if form == "lists" else NAMES
    photos = [f"{one.replace('/', '')}.png" for one in names]
    labels = np.eye(len(names), dtype=np.uint8)
    labels[:, 1] = 1
    labels[:, 0] *= form != "a label never occurs"
    table = LabelTable.from_arrays(
        names, FileImages(tmp_path, photos), labels, group=names, name="strange"
    )
    export(table, tmp_path / name)
    assert (len(cells_of(tmp_path / name)[0]) > len(names)) == (form != "lists")
    back = load(str(tmp_path / name), check_files=False)
    assert list(back.ids) == photos
    assert list(back.group) == names
    order = [back.space.names.index(one) for one in names]
    assert np.array_equal(back.targets()[0][:, order], labels)


def test_answers_of_the_labelling_page_and_texts_of_labels(tmp_path):
    answers = {f"/photos/{row}.png": {name: row == 1} for row, name in enumerate(FORMULAS)}
    write_table(tmp_path / "answers.csv", FORMULAS, answers, None)
    cells_of(tmp_path / "answers.csv")
    assert load(str(tmp_path / "answers.csv"), check_files=False).space.names == tuple(FORMULAS)
    pairs = tuple((name, f"{name} in a photo") for name in FORMULAS)
    texts = Texts(tuple(FORMULAS), np.eye(len(FORMULAS), dtype=np.float32), pairs, None, None)
    write_csv(tmp_path / "prompts.csv", ["label", "prompt"], texts.prompts)
    cells_of(tmp_path / "prompts.csv")
    assert [(label, text) for _, label, text in read_prompts(tmp_path / "prompts.csv")] == [*pairs]


def test_keywords_in_photos_of_strangers(tmp_path):
    child, parent = "=1+1", "@SUM(A1)"
    packet = (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf'
        '-syntax-ns#"><rdf:Description xmlns:lr="http://ns.adobe.com/lightroom/1.0/">'
        f"<lr:hierarchicalSubject><rdf:Bag><rdf:li>{parent}|{child}</rdf:li></rdf:Bag>"
        "</lr:hierarchicalSubject></rdf:Description></rdf:RDF></x:xmpmeta>"
    )
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "a.png")
    (tmp_path / "photos" / "a.xmp").write_text(packet)
    table, above = tmp_path / "table.csv", tmp_path / "above.csv"
    must_run("data", "import", tmp_path / "photos", "-o", table, "--taxonomy-out", above)
    cells_of(table)
    assert cells_of(above)[1] == ["'=1+1", "'@SUM(A1)"]
    assert Taxonomy.read(above).parents == {child: parent}
    assert child in load(str(table), check_files=False).space.names


# Files that are no files, pictures that claim to be huge. Oracles: the sentence; the memory. A
# pipe waits for its writer, and /dev/zero never ends: reading either in full is the failure.

READERS = {
    "model.json": ModelSpec.load,
    "settings.yaml": lambda path: RunFolder(path.parent).settings,
    "plan.yaml": read_yaml,
    "contents.json": lambda path: contents_of(SimpleNamespace(checkpoint=path.parent)),
    "metrics.jsonl": lambda path: Journal(path).read(),
    "model.onnx": content_of,
    "evaluation.json": Evaluation.load,
    "index.json": IndexFacts.load,
    "model.safetensors": load_tensors,
    "test.parquet": Predictions.load,
    "photos.parquet": read_parquet,
    "photos.sqlite": lambda path: Database(path, "mode=ro"),
    "0.parquet": file_hash,
    "answers.jsonl": lambda path: AnswerLog(path).lines(),
    "written.jsonl": lambda path: AnswerLog(path).append([]),
    "eye.onnx": Eye.open,
}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files in folders")
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_not_a_file_is_named_at_once(name, kind, tmp_path):
    place = tmp_path / ("eye.json" if name == "eye.onnx" else name)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    if name == "model.onnx":
        assert RunFolder(tmp_path).is_solved  # it is opened, and named, without torch
    said = in_time(lambda: READERS[name](tmp_path / name))
    assert "must be a file, it is a device, pipe or socket" in said


def in_time(read):
    """Return what is read, or the sentence of its error; a reader that waits for ever fails."""
    found = []

    def run():
        try:
            found.append(read())
        except LabelwiseError as error:
            found.append(str(error))

    reader = threading.Thread(target=run, daemon=True)
    reader.start()
    reader.join(120)
    assert not reader.is_alive(), "it waits for a writer"
    return found[0]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files in folders")
def test_every_file_of_an_index_is_a_file_or_is_named(tmp_path):
    """A file is a pipe, a terabyte of nothing, or gone: a search says so, or needs it not.

    What ``cache`` holds can be made again. Oracle: the answers of the index as it was written.
    """
    photos = twelve_photos(tmp_path / "photos")
    logits = np.random.default_rng(0).normal(size=(40, len(LABELS)))
    held_out = Predictions([*map(str, range(40))], logits, logits > 0, None, LABELS, "test", None)
    folder = tmp_path / "photos.index"
    update_index(folder, [photos], model=save_model(tmp_path / "run"), watch=Silent())
    with Index(folder) as index:
        index.use(index.spec, held_out, held_out)

    def answers():
        with Index(folder) as index:
            known = index.held_out.ids, index.validation_photos.stored.ids
            vectors = index.store.looks(), index.embeddings.projection, index.store.embeddings()
            return repr((known, vectors, index.store.logits(slice(None)), index.taxonomy))

    expected = answers()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        content, name = path.read_bytes(), path.relative_to(folder)
        for put in (os.mkfifo, lambda place: (place.touch(), os.truncate(place, 1 << 40)), None):
            path.unlink()
            if put is not None:
                put(path)
            found = in_time(answers)
            is_named = path.name in found or "is not an index" in found
            assert found == expected or (is_named and "cache" not in name.parts), name
        path.write_bytes(content)
    assert answers() == expected


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(side, *, exif_behind=False):
    """Return a PNG that claims to be square and grey; its pixels are few, and break off."""
    exif = Image.Exif()
    exif[0x0110] = "Camera 7"
    exif.get_ifd(0x8769)[0x9003] = "2024:05:06 07:08:09"
    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))]
    parts.append(chunk(b"IDAT", zlib.compress(bytes(3_000_000))))
    if exif_behind:
        parts.append(chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")))
    return b"\x89PNG\r\n\x1a\n" + b"".join([*parts, chunk(b"IEND", b"")])


def resident(entry):
    """Return a figure of this process's memory in KiB: VmRSS now, VmHWM at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{entry}:"))


@pytest.mark.skipif(sys.platform != "linux", reason="the system says what memory was used at most")
def test_no_pixel_of_a_picture_is_decoded_for_its_header(tmp_path):
    """81 million pixels in 3 kB: Pillow's getexif() decodes them."""
    bomb, place = png(9_000), tmp_path / "bomb.png"
    assert len(bomb) < 4_000
    place.write_bytes(bomb)
    Path("/proc/self/clear_refs").write_text("5")  # forget what was used at most so far
    before = resident("VmRSS")
    content = _content(b"", bomb)
    assert (content.width, content.height, content.taken) == (9_000, 9_000, None)
    assert read_facts(bomb).camera is None
    assert read_photo_metadata(place).words == ()
    assert resident("VmHWM") - before < 40_000  # the pixels take 79,000


def test_exif_behind_the_pixels_of_a_png_is_read():
    content, facts = (
        make(png(64, exif_behind=True)) for make in (lambda b: _content(b"", b), read_facts)
    )
    assert (content.width, content.taken) == (64, "2024-05-06T07:08:09")
    assert facts.camera == "Camera 7"
    with Image.open(io.BytesIO(png(64, exif_behind=True))) as image:  # as Pillow reads it
        assert image.getexif()[0x0110] == "Camera 7"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files in folders")
def test_every_verb_reads_the_same_photos_of_a_folder(tmp_path):
    """Oracle: the three photos that a person sees in the folder, and what else was put there."""
    root, others = tmp_path / "photos", tmp_path / "others"
    for seed, place in enumerate((root / "a", root / "b", root / ".git", root / "@eaDir", others)):
        picture(place / "1.png", seed)
    picture(root / "a" / ".hidden.png", 9)
    (root / "a" / ".DS_Store").touch()
    (root / "a" / "again.png").symlink_to("../b/1.png")
    (root / "a" / "above").symlink_to("..")
    (root / "a" / "itself.png").symlink_to("itself.png")
    (root / "a" / "out.png").symlink_to(others / "1.png")
    (root / "out").symlink_to(others)
    os.mkfifo(root / "b" / "pipe.png")
    names = ["a/1.png", "a/again.png", "b/1.png"]
    note = (
        "left out: 1 broken link, 1 hidden file, 1 hidden folder, 2 outward links, 1 special "
        "file, 1 system folder"
    )
    assert find_images(root)[0] == names
    assert find_images(root)[1][0].startswith(note)
    with pytest.raises(DataError, match=r"'a/again.png' and 'b/1.png' are one file, with diff"):
        load(str(root))  # the folders are its labels
    table = load(str(root), check_files=False)
    assert [*table.ids] == names
    assert note in " ".join(table.notes)
    with pytest.warns(UserWarning, match=note):
        rows = [*find_rows([str(root)])]
    assert [os.fsdecode(row.file) for row in rows] == names
    model, index = save_model(tmp_path / "run"), tmp_path / "photos.index"
    changes = update_index(index, [root], model=model, watch=Silent())
    assert (changes.new, changes.copied) == (2, 1)
    assert note in " ".join(changes.notes)
    with Index(index) as opened:
        paths = [path for row in (0, 1) for path in opened.store.paths_of([row])[row]]
    assert sorted(paths) == [str(root / name) for name in names]

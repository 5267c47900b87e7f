"""Files that were changed after they were kept are refused in a sentence.

The oracle is the error: each of these ended in an internal one, or was read as something else.
"""

import json
import sqlite3
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forged import rewrite
from search_setup import LABELS, save_model

from labelwise.answers.log import AnswerLog
from labelwise.contrib.skos import read_skos
from labelwise.decide import Threshold
from labelwise.errors import CheckpointError, DataError
from labelwise.links import Sigmoid
from labelwise.models import ModelSpec
from labelwise.models.graph_file import Facts
from labelwise.photos.database import create_database, open_database
from labelwise.photos.words.answers import KeptAnswers, PhotoAnswer
from labelwise.pictures import Transform
from labelwise.scores.aggregating import aggregate_table
from labelwise.shards.inputs import InputRow
from labelwise.shards.scoring_task import PLAN_SCHEMA, ScoringPlan, plan_name, plan_rows
from labelwise.system.storage import storage_at
from labelwise.types import LabelSpace

SKOS = "http://www.w3.org/2004/02/skos/core#"
PLAN = {"inputs": ["photos"], "model": "m", "batch_size": 8, "shard_rows": 2}


@pytest.mark.parametrize("change", [{"inputs": "photos"}, {"rows": "2"}, {"more": 1}])
def test_a_plan_of_other_types_is_damaged(tmp_path, change):
    (tmp_path / "_plan.json").write_text(json.dumps(PLAN))
    assert ScoringPlan.load(storage_at(str(tmp_path))) == ScoringPlan(("photos",), "m", 8, 2)
    (tmp_path / "_plan.json").write_text(json.dumps(PLAN | change))
    with pytest.raises(CheckpointError, match="damaged"):
        ScoringPlan.load(storage_at(str(tmp_path)))


def test_rows_of_a_plan_that_are_not_rows_are_damaged(tmp_path):
    place = tmp_path / plan_name(0)
    place.parent.mkdir()
    pq.write_table(pa.table({"id": [1]}), place)
    for content in (place.read_bytes(), b"PAR1", b""):
        place.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            plan_rows(storage_at(str(tmp_path)), 0)


@pytest.mark.parametrize("field", ["photo", "label", "who"])
def test_an_answer_holds_text(tmp_path, field):
    whole = dict.fromkeys(("photo", "label", "who", "at"), "a") | {"state": "present"}
    (tmp_path / "a.jsonl").write_text(json.dumps(whole | {field: ["a"]}) + "\n")
    with pytest.raises(DataError, match="not an answer log"):
        AnswerLog(tmp_path / "a.jsonl").lines()


def test_answers_of_a_run_of_0_2_are_read_or_named(tmp_path):
    place = tmp_path / "k.parquet"
    row = {"digest": b"1", "id": "a", "present": ["dog"], "absent": ["cat"], "aside": True}
    pq.write_table(pa.Table.from_pylist([row]), place)
    told = PhotoAnswer("a", {"dog": True, "cat": False}, True)
    assert KeptAnswers.load(tmp_path / "k.jsonl").photos == {b"1": told}
    for odd in (pa.table({"digest": ["1"]}), pa.Table.from_pylist([row | {"present": [None]}])):
        pq.write_table(odd, place)
        with pytest.raises(DataError, match=r"can(not)? be read"):
            KeptAnswers.load(tmp_path / "k.jsonl")


@pytest.mark.parametrize("escape", ["\\UFFFFFFFF", "\\uD800"])
def test_an_escape_is_a_letter(tmp_path, escape):
    place = tmp_path / "v.nt"
    place.write_text(f'<u:dog> <{SKOS}prefLabel> "{escape}" .\n')
    with pytest.raises(DataError, match="line 1"):
        read_skos(place)


def test_a_language_that_is_not_text_is_none(tmp_path):
    names = [{"@id": f"u:{n}", "prefLabel": {"@value": n, "@language": 1.5}} for n in ("a", "b")]
    place = tmp_path / "v.jsonld"
    place.write_text(json.dumps([*names, {"@id": "u:a", "broader": {"@id": "u:b"}}]))
    assert read_skos(place).parents == {"a": "b"}


def test_a_database_whose_tables_have_no_names_is_damaged(tmp_path):
    """SQLite repeats the name in its message, and Python could not read that."""
    place = tmp_path / "photos.sqlite"
    create_database(place, "CREATE TABLE roots (id INTEGER)")
    open_database(place).close()
    with closing(sqlite3.connect(place)) as database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET name = CAST(X'd9' AS TEXT), sql = 'x'")
        database.commit()
    with pytest.raises(CheckpointError, match="it is malformed"):
        open_database(place)


def test_two_labels_of_one_name_in_the_model_of_an_index(tmp_path):
    model = save_model(tmp_path / "model")
    place = tmp_path / "model" / "model.json"
    assert ModelSpec.load(place, tried=True).labels == LABELS
    rewrite(place, labels=[LABELS[1], *LABELS[1:]])
    with pytest.raises(CheckpointError, match="must be distinct"):
        ModelSpec.load(model / "model.json", tried=True)


def test_text_of_a_plan_that_is_not_text_is_damaged(tmp_path):
    rows = [InputRow("parus.jpg", "photos", b"a.jpg")]
    columns = zip(PLAN_SCHEMA, zip(*rows, strict=True), strict=True)
    table = pa.table([pa.array(values, field.type) for field, values in columns], PLAN_SCHEMA)
    place = tmp_path / plan_name(0)
    place.parent.mkdir()
    pq.write_table(table, place, compression="none")
    assert plan_rows(storage_at(str(tmp_path)), 0) == rows
    place.write_bytes(place.read_bytes().replace(b"parus", b"p\xecrus"))
    with pytest.raises(CheckpointError, match="damaged"):
        plan_rows(storage_at(str(tmp_path)), 0)


def test_names_of_units_that_end_in_a_null_are_not_joined(tmp_path):
    """NumPy leaves a null out at the end of a text: two units would become one."""
    table = tmp_path / "s.csv"
    table.write_text("id,burst,score:x\na,1,0.5\nb,1 ,0.5\n")
    assert len(aggregate_table(table, "probs", ["burst"], "any").names) == 2
    table.write_text("id,burst,score:x\na,1,0.5\nb,1\0,0.5\n")
    with pytest.raises(DataError, match="must not hold a null"):
        aggregate_table(table, "probs", ["burst"], "any")


def test_an_entry_of_a_transform_that_nobody_knows_is_refused():
    facts = Facts(LabelSpace(LABELS), Sigmoid(), Threshold(0.5), Transform(32), "bce", "0" * 64)
    stated = facts.metadata()
    assert Facts.read(stated).transform == Transform(32)
    stated["transform"] = json.dumps(Transform(32).spec() | {"gamma": 2})
    with pytest.raises(ValueError, match="must not have the entry 'gamma'"):
        Facts.read(stated)

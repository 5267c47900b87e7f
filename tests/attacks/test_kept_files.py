"""Files that were changed after they were kept are refused in a sentence.

The oracle is the error: each of these ended in an internal one, or was read as something else.
"""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labelwise.errors import CheckpointError, DataError
from labelwise.shards.scoring_task import Plan, plan_name, plan_rows
from labelwise.system.skos import read_skos
from labelwise.system.storage import storage_at
from labelwise.words.answer_log import AnswerLog
from labelwise.words.answers import KeptAnswers

SKOS = "http://www.w3.org/2004/02/skos/core#"
PLAN = {"inputs": ["photos"], "model": "m", "batch_size": 8, "shard_rows": 2}


@pytest.mark.parametrize("change", [{"inputs": "photos"}, {"rows": "2"}, {"more": 1}])
def test_a_plan_of_other_types_is_damaged(tmp_path, change):
    (tmp_path / "_plan.json").write_text(json.dumps(PLAN))
    assert Plan.load(storage_at(str(tmp_path))) == Plan(("photos",), "m", 8, 2)
    (tmp_path / "_plan.json").write_text(json.dumps(PLAN | change))
    with pytest.raises(CheckpointError, match="damaged"):
        Plan.load(storage_at(str(tmp_path)))


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
    with pytest.raises(DataError, match="line 1"):
        AnswerLog(tmp_path / "a.csv", ("dog",))


def test_answers_of_one_photo_are_there_once(tmp_path):
    place = tmp_path / "k.parquet"
    KeptAnswers({}).save(place)
    schema = pq.read_schema(place)
    row = {"digest": b"1", "id": "a", "present": ["dog"], "absent": [], "aside": False}
    pq.write_table(pa.Table.from_pylist([row], schema), place)
    assert list(KeptAnswers.load(place).photos) == [b"1"]
    for table in (pa.Table.from_pylist([row, row], schema), pa.table({"digest": ["1"]})):
        pq.write_table(table, place)
        with pytest.raises(DataError, match="no answers that can be read"):
            KeptAnswers.load(place)


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

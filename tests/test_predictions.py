import json

import pyarrow.parquet as pq
import pytest
import torch

from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.links import Softmax
from labelwise.predictions import Predictions


def some(observed=True, rows=5):
    generator = torch.Generator().manual_seed(3)
    return Predictions(
        [f"a/{row}.jpg" for row in range(rows)],
        torch.randn(rows, 3, generator=generator),
        torch.randint(2, (rows, 3), generator=generator, dtype=torch.uint8),
        torch.rand(rows, 3, generator=generator) < 0.7 if observed else None,
        ("dog", 'a|b, "c"', "größe"),
        "test",
        Softmax(2.5),
    )


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("rows", [0, 5])
def test_a_saved_file_is_read_back_unchanged(tmp_path, observed, rows):
    one = some(observed, rows)
    one.save(tmp_path / "sub" / "test.parquet")
    other = Predictions.load(tmp_path / "sub" / "test.parquet")
    assert list(other.ids) == list(one.ids)
    assert other.names == one.names
    assert other.split == "test"
    assert other.link.spec() == {"temperature": 2.5}
    assert torch.equal(other.logits, one.logits)
    assert torch.equal(other.labels, one.labels)
    assert (other.observed is None) == (not observed)
    if observed:
        assert torch.equal(other.observed, one.observed)


def test_soft_labels_and_a_missing_link_survive(tmp_path):
    one = some().with_link(None)
    soft = Predictions(one.ids, one.logits, one.labels * 0.3, None, one.names, "val")
    soft.save(tmp_path / "p.parquet")
    other = Predictions.load(tmp_path / "p.parquet")
    assert other.link is None
    assert torch.equal(other.labels, soft.labels)


def test_other_tools_see_one_fixed_size_list_a_row(tmp_path):
    some().save(tmp_path / "p.parquet")
    table = pq.read_table(tmp_path / "p.parquet")
    assert table.column_names == ["id", "logits", "labels", "observed"]
    assert str(table.schema.field("logits").type) == "fixed_size_list<element: float>[3]"
    assert table["logits"][2].as_py() == some().logits[2].tolist()
    facts = json.loads(table.schema.metadata[b"labelwise"])
    assert facts["link"] == {"kind": "softmax", "temperature": 2.5}


def test_shapes_must_agree():
    one = some()
    with pytest.raises(ValueError, match=r"logits must have shape \(5, 3\), got \(5, 2\)"):
        Predictions(one.ids, one.logits[:, :2], one.labels, None, one.names, "test")
    with pytest.raises(ValueError, match="observed must be boolean"):
        Predictions(one.ids, one.logits, one.labels, one.labels, one.names, "test")


def test_bad_files_get_one_sentence(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        Predictions.load(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(CheckpointError, match="not a readable predictions file"):
        Predictions.load(tmp_path / "text.parquet")
    some().save(tmp_path / "p.parquet")
    pq.write_table(
        pq.read_table(tmp_path / "p.parquet").replace_schema_metadata({}), tmp_path / "q.parquet"
    )
    with pytest.raises(CheckpointError, match="without labelwise metadata"):
        Predictions.load(tmp_path / "q.parquet")


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    some().save(tmp_path / "p.parquet")
    before = (tmp_path / "p.parquet").read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(LabelwiseError, match=r"cannot write .*p.parquet: the disk is full"):
        some(rows=2).save(tmp_path / "p.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]
    assert (tmp_path / "p.parquet").read_bytes() == before

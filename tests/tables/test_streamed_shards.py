"""Shards that are streamed, tar and Parquet. Oracle: the same shards read from the disk."""

import io
import json
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sample_pictures import Folder

from labelwise.errors import DataError, ImageError
from labelwise.pictures import Transform
from labelwise.pictures.sources import Blocks
from labelwise.tables import load, shards
from labelwise.training.loader import Loader, order_of_blocks


@cache
def png(number):
    pixels = np.random.default_rng(number).integers(0, 256, (18, 20, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def labels_of(number):
    return [name for name, every in (("a", 2), ("b", 3), ("c", 5)) if number % every == 0]


def write_tar(path, numbers):
    images = {f"{number:04d}.png": png(number) for number in numbers}
    said = {f"{n:04d}.json": json.dumps({"labels": labels_of(n)}).encode() for n in numbers}
    Folder(path.parent).tar(path.name, images | said)


def write_parquet(path, numbers):
    columns = {"image": [{"bytes": png(number), "path": None} for number in numbers]}
    columns["labels"] = list(map(labels_of, numbers))
    pq.write_table(pa.table(columns), path, row_group_size=5)


@pytest.fixture(params=["tar", "parquet"])
def folder(request, tmp_path, monkeypatch):
    """Sixty images in three shards for training, and twenty in one for validation."""
    monkeypatch.setattr(shards, "BLOCK_BYTES", 8000)  # about six images
    write = {"tar": write_tar, "parquet": write_parquet}[request.param]
    for shard in range(3):
        write(tmp_path / f"train-{shard:03d}.{request.param}", range(20 * shard, 20 * shard + 20))
    write(tmp_path / f"val-000.{request.param}", range(60, 80))
    return tmp_path


def contents(images):
    return list(map(images.content, range(len(images))))


def test_streamed_shards_hold_what_the_disk_holds(folder):
    streamed, plain = load(f"file://{folder}"), load(folder)
    assert streamed.space == plain.space
    assert contents(streamed.images) == contents(plain.images)
    np.testing.assert_equal(streamed.targets(), plain.targets())
    assert streamed.split.tolist() == plain.split.tolist() == ["train"] * 60 + ["val"] * 20
    kind = next(folder.iterdir()).suffix
    parts = load(f"train=file://{folder}/train-*{kind};test=file://{folder}/val-000{kind}")
    assert parts.split.tolist() == ["train"] * 60 + ["test"] * 20
    assert contents(parts.images) == contents(plain.images)
    assert len(np.unique(streamed.images.blocks.number)) >= 12
    assert contents(streamed.subset([70, 3, 41]).images) == [png(70), png(3), png(41)]


def loader(table, **options):
    transform = Transform(16, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    return Loader(table, transform, shuffle=True, seed=3, **options)


def test_a_process_fetches_its_own_blocks_and_joins_the_batches_of_one(folder, monkeypatch):
    monkeypatch.setattr("labelwise.training.loader.CPU_LIMIT", 0)  # pictures are decoded each time
    monkeypatch.setattr("labelwise.training.loader.LANES", 4)
    table = load(f"file://{folder}").splits()["train"]
    whole = list(loader(table, batch_size=8).epoch(1))
    seen = {row for batch in whole for row in batch.targets.index.tolist()}
    assert (len(seen), seen <= set(range(60))) == (56, True)  # a short last batch is left out
    fetched = []

    class Watched(shards._BlockTable):
        def fetch(self, block):
            fetched.append(block)
            return super().fetch(block)

    for world in (2, 4):
        parts, blocks = [], []
        for rank in range(world):
            fetched.clear()
            own = load(f"file://{folder}").splits()["train"]
            own.images.table = Watched(**vars(own.images.table))
            made = loader(own, batch_size=8 // world, rank=rank, world=world)
            parts.append(list(made.epoch(1)))
            assert len(fetched) == len(set(fetched))  # none is fetched twice
            blocks.append(set(fetched))
        for joined, *own in zip(whole, *parts, strict=True):
            assert torch.equal(torch.cat([one.targets.index for one in own]), joined.targets.index)
            assert torch.equal(torch.cat([one.images for one in own]), joined.images)
        # Lanes end inside blocks, which both sides then need.
        assert sum(map(len, blocks)) <= len(set().union(*blocks)) + world + 1
    rest = loader(table, batch_size=8).epoch(1, start=3)
    for one, other in zip(rest, whole[3:], strict=True):
        assert one.targets.index.tolist() == other.targets.index.tolist()


def test_few_blocks_are_in_memory_and_a_second_reading_begins_again(folder):
    images = load(f"file://{folder}").images
    order = order_of_blocks(Blocks(images.block, 2.0**28), 8, np.random.default_rng(0))  # 2 lanes
    images.will_read(order)
    for _ in range(2):
        held = []
        for row in order.tolist():
            assert images.content(row) == png(row)
            held.append(len(images._held))
        most = 2 * 2 + shards.AHEAD + 2 * shards.KEPT
        assert 4 < max(held) <= most < len(np.unique(images.block))


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    batch=st.integers(1, 24),
    mean=st.sampled_from([1.0, 2.0**25, 2.0**31]),
)
@settings(max_examples=30, deadline=None)
def test_the_order_of_blocks_holds_each_row_once_and_few_blocks_at_a_time(sizes, batch, mean):
    number = np.repeat(np.arange(len(sizes)), sizes)
    order = order_of_blocks(Blocks(number, mean), batch, np.random.default_rng(0))
    assert sorted(order.tolist()) == list(range(len(number)))
    if mean == 2.0**31 and len(number) >= batch:  # one lane: a block after the other
        assert (np.diff(number[order[: len(number) // batch * batch]]) != 0).sum() < len(sizes)


def test_epochs_differ_and_blocks_are_torn_apart():
    """Each batch draws from all lanes: a batch of 32 of 64 blocks holds rows of 32 blocks."""
    blocks = Blocks(np.repeat(np.arange(64), 16), 1.0)
    orders = [order_of_blocks(blocks, 32, np.random.default_rng(seed)) for seed in (0, 1)]
    assert not np.array_equal(*orders)
    for batch in np.concatenate(orders).reshape(-1, 32):
        assert len(set(blocks.number[batch])) == 32


def test_what_cannot_be_streamed_is_said(folder, tmp_path):
    with pytest.raises(DataError, match=r"there are no .tar or .parquet shards"):
        load(f"file://{tmp_path}/none-*.tar")
    with pytest.raises(DataError, match=r"cannot be joined with 'b\.csv'"):
        load(f"train=file://{folder};test=b.csv")
    (kind,) = {path.suffix for path in folder.iterdir()}
    table = load(f"file://{folder}/train-000{kind}")
    (folder / f"train-000{kind}").unlink()
    table.images.will_read(np.arange(20))
    with pytest.raises(ImageError, match=r"train-000.*: the shard cannot be read"):
        table.images.content(15)
    (folder / "more.tar").write_bytes(b"")
    if kind == ".parquet":
        with pytest.raises(DataError, match="must be all tar or all Parquet"):
            load(f"file://{folder}")

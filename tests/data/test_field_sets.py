"""Chest X-rays, satellite images: the labels written into miniatures of each official layout."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from band_files import band_folder, tiff
from test_datasets import by_split, named

from labelwise.contrib.fields import FINDINGS
from labelwise.data import load
from labelwise.data.checks import reject_divided_groups
from labelwise.errors import DataError
from labelwise.pictures.transform import Bands

HEADER = "Path,Sex,Age,Frontal/Lateral,AP/PA," + ",".join(FINDINGS)
PATCH = "S2A_MSIL2A_20170613T101031_N9999_R022_T33UUP_26_57"
OTHER = "S2A_MSIL2A_20170613T101031_N9999_R022_T33UUP_26_58"
TILE = PATCH.removesuffix("_26_57")


def findings(**states):
    """Return the fourteen cells of a row; a finding is named without blanks."""
    return ",".join(states.get(name.replace(" ", ""), "") for name in FINDINGS)


def test_chexpert_keeps_uncertain_and_silent_apart(folder):
    cells = {"Edema": "1.0", "Pneumonia": "-1.0", "Fracture": "0.0"}
    views = {
        "train/patient00001/study1/view1_frontal.jpg": {"NoFinding": "1.0"},
        "train/patient00002/study1/view1_frontal.jpg": cells,
        "train/patient00002/study2/view2_lateral.jpg": {"Edema": "0.0"},
    }
    start = "CheXpert-v1.0-small/"
    rows = [f"{start}{path},Female,68,View,AP,{findings(**own)}" for path, own in views.items()]
    folder.text("train.csv", "\n".join([HEADER, *rows, ""]))
    held = "valid/patient64541/study1/view1_frontal.jpg"
    row = f"{start}{held},Male,73,Frontal,AP,{','.join(['0.0'] * 14)}"
    folder.text("valid.csv", f"{HEADER}\n{row}\n")
    folder.pictures(*views, held)
    table = load(folder.path)
    assert table.name == "chexpert"
    assert table.space.names == FINDINGS
    present, unknown = named(table)["train/patient00002/study1/view1_frontal.jpg"]
    assert present == {"Edema"}
    assert "Pneumonia" in unknown
    assert unknown == set(FINDINGS) - {"Edema", "Fracture"}
    assert by_split(table)["val"] == ["valid/patient64541/study1/view1_frontal.jpg"]
    assert named(table)["valid/patient64541/study1/view1_frontal.jpg"] == (set(), set())
    assert list(table.group) == ["patient00001", "patient00002", "patient00002", "patient64541"]
    (note,) = [one for one in table.notes if "-1" in one]
    assert note == (
        "1 entries of -1 are read as unknown, 37 blank ones as unknown (`--set blank=absent` if "
        "otherwise)"
    )
    absent = load(folder.path, blank="absent")
    assert named(absent)["train/patient00002/study1/view1_frontal.jpg"][1] == {"Pneumonia"}
    assert len(load(folder.path, views="lateral")) == 1
    folder.text("train.csv", (folder.path / "train.csv").read_text().replace("-1.0", "maybe"))
    with pytest.raises(DataError, match=r"train.csv, row 2: 'Pneumonia' must be 1, 0, -1 or empty"):
        load(folder.path)


def test_chexpert_is_read_in_the_batches_of_its_download(folder):
    """Oracle: the folders as the four archives are unpacked, and the labels of the test set."""
    first = "CheXpert-v1.0 batch 1 (validate & csv)"
    front, lateral = "study1/view1_frontal.jpg", "study1/view2_lateral.jpg"
    stated = {
        "train.csv": [f"train/patient00001/{front}", f"train/patient43018/{lateral}"],
        "valid.csv": [f"valid/patient64541/{front}"],
        "test_labels.csv": [f"test/patient64741/{front}"],
    }
    for name, paths in stated.items():
        header = HEADER if name != "test_labels.csv" else ",".join(["Path", *FINDINGS])
        facts = ",Female,68,Frontal,AP" if name != "test_labels.csv" else ""
        rows = [f"CheXpert-v1.0/{path}{facts},{findings(Edema='1')}" for path in paths]
        folder.text(f"{first}/{name}", "\n".join([header, *rows, ""]))
    places = {
        f"CheXpert-v1.0 batch 2 (train 1)/patient00001/{front}": "train",
        f"CheXpert-v1.0 batch 4 (train 3)/patient43018/{lateral}": "train",
        f"{first}/valid/patient64541/{front}": "val",
        f"{first}/test/patient64741/{front}": "test",
    }
    folder.pictures(*places)
    table = load(folder.path)
    assert table.name == "chexpert"
    assert dict(zip(table.ids, table.split, strict=True)) == places
    assert list(table.group) == ["patient00001", "patient43018", "patient64541", "patient64741"]
    table.images.read(1)


def test_mimic_images_have_the_labels_of_their_study(folder):
    names = sorted(FINDINGS)
    cells = {"Edema": "1.0", "Fracture": "-1.0", "Pneumonia": "0.0"}
    labels = f"subject_id,study_id,{','.join(names)}\n10000032,50414267,"
    labels += ",".join(cells.get(name, "") for name in names) + "\n"
    folder.text("mimic-cxr-2.0.0-chexpert.csv.gz", gzip.compress(labels.encode()))
    split = (
        "dicom_id,study_id,subject_id,split\n"
        "02aa804e-bde0afdd,50414267,10000032,train\n174413ec-4ec4c1f7,50414267,10000032,train\n"
        "2a2277a9-b0ded155,53189527,10000764,validate\ne084de3b-be89b11e,53911762,10000764,test\n"
    )
    folder.text("mimic-cxr-2.0.0-split.csv", split)
    first, second, third, fourth = paths = [
        f"files/p10/{name}.jpg"
        for name in (
            *("p10000032/s50414267/02aa804e-bde0afdd", "p10000032/s50414267/174413ec-4ec4c1f7"),
            *("p10000764/s53189527/2a2277a9-b0ded155", "p10000764/s53911762/e084de3b-be89b11e"),
        )
    ]
    folder.pictures(*paths)
    table = load(folder.path, blank="absent")
    assert named(table)[first] == named(table)[second] == ({"Edema"}, {"Fracture"})
    assert by_split(table) == {"train": [first, second], "val": [third], "test": [fourth]}
    assert list(table.group) == ["p10000032", "p10000032", "p10000764", "p10000764"]
    assert named(load(folder.path))[third] == (set(), set(FINDINGS))


def test_chestxray14_no_finding_is_an_image_without_labels(folder):
    folder.text(
        "Data_Entry_2017_v2020.csv",
        "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,"
        "View Position,OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],\n"
        "00000001_000.png,Cardiomegaly|Emphysema,0,1,57,M,PA,2682,2749,0.143,0.143,\n"
        "00000001_001.png,No Finding,1,1,58,M,PA,2894,2729,0.143,0.143,\n"
        "00000002_000.png,Pleural_Thickening,0,2,80,M,PA,2500,2048,0.171,0.171,\n",
    )
    folder.text("train_val_list.txt", "00000001_000.png\n00000001_001.png\n")
    folder.text("test_list.txt", "00000002_000.png\n")
    shown = {
        "images_001/images/00000001_000.png": {"Cardiomegaly", "Emphysema"},
        "images_001/images/00000001_001.png": set(),
        "images_002/images/00000002_000.png": {"Pleural_Thickening"},
    }
    folder.pictures(*shown)
    table = load(folder.path)
    assert len(table.space) == 14
    assert named(table) == {image: (labels, set()) for image, labels in shown.items()}
    assert by_split(table)["test"] == ["images_002/images/00000002_000.png"]
    folder.text("Data_Entry_2017.csv", "")
    with pytest.raises(DataError, match=r"holds Data_Entry_2017.csv and Data_Entry_2017_v2020.csv"):
        load(folder.path)
    assert list(table.group) == ["patient 1", "patient 1", "patient 2"]


@pytest.fixture
def bigearthnet(folder):
    records = [
        {"patch_id": PATCH, "labels": ["Arable land", "Pastures"], "split": "train"},
        {"patch_id": OTHER, "labels": ["Marine waters"], "split": "validation"},
    ]
    pq.write_table(pa.Table.from_pylist(records), folder.path / "metadata.parquet")
    rng = np.random.default_rng(0)
    for number, patch in enumerate((PATCH, OTHER)):
        sides = {"B01": 20, "B02": 120, "B05": 60}
        bands = {n: rng.integers(0, 9000, (s, s)).astype(np.uint16) for n, s in sides.items()}
        band_folder(folder.path / "BigEarthNet-S2" / TILE / patch, bands)
        codes = np.full((120, 120), (211, 523)[number], np.uint16)
        codes[:9] = (231, 999)[number]
        place = folder.path / "Reference_Maps" / TILE / patch
        place.mkdir(parents=True)
        (place / f"{patch}_reference_map.tif").write_bytes(tiff(codes))
    return folder


def test_bigearthnet_patches_are_folders_of_bands(bigearthnet):
    table = load(bigearthnet.path)
    first, second = (f"BigEarthNet-S2/{TILE}/{patch}" for patch in (PATCH, OTHER))
    assert len(table.space) == 19
    assert named(table)[first] == ({"Arable land", "Pastures"}, set())
    assert by_split(table) == {"train": [first], "val": [second]}
    assert list(table.group) == [f"{TILE} in train", f"{TILE} in val"]
    reject_divided_groups(table)
    (note,) = [one for one in table.notes if "divide" in one]
    assert note.startswith("the published splits divide 1 of 1 tile, so that test patches lie")
    whole = load(bigearthnet.path, splits="none")
    assert whole.split is None
    assert list(whole.group) == [TILE, TILE]
    found = table.images.read_bands(0, Bands(("B02", "B01"), ("B02",)))
    assert found.shape == (120, 120, 2)


def test_bigearthnet_has_43_classes_by_its_reference_maps(bigearthnet):
    table = load(bigearthnet.path, labels=43)
    assert len(table.space) == 43
    expected = [{"Non-irrigated arable land", "Pastures"}, {"Sea and ocean"}]
    assert [present for present, _ in named(table).values()] == expected
    place = bigearthnet.path / "Reference_Maps" / TILE / PATCH / f"{PATCH}_reference_map.tif"
    place.write_bytes(tiff(np.full((120, 120), 777, np.uint16)))
    with pytest.raises(DataError, match="777 is not a code of CORINE Land Cover"):
        load(bigearthnet.path, labels=43)


def test_ucmerced_has_one_column_per_label(folder):
    folder.text(
        "LandUse_Multilabeled.txt",
        "IMAGE\\LABEL\tairplane\tbare-soil\ttrees\nagricultural00\t0\t0\t0\nairplane07\t1\t0\t1\n",
    )
    folder.pictures("Images/agricultural/agricultural00.tif", "Images/airplane/airplane07.tif")
    table = load(folder.path)
    assert named(table) == {
        "Images/agricultural/agricultural00.tif": (set(), set()),
        "Images/airplane/airplane07.tif": ({"airplane", "trees"}, set()),
    }
    text = (folder.path / "LandUse_Multilabeled.txt").read_text()
    folder.text("LandUse_Multilabeled.txt", text.replace("1\t0\t1", "1\t2\t1"))
    with pytest.raises(DataError, match="line 3: must be an image and 3 numbers 0 or 1"):
        load(folder.path)

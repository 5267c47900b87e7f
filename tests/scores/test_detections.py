"""Tables of BirdNET-Analyzer and Perch: held to themselves and to worlds with known truth."""

import csv
import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.special import expit, logit, ndtr
from typed import must_run, run

from labelwise.errors import DataError
from labelwise.scores import read_scores
from labelwise.scores.calls import count_calls
from labelwise.scores.read import is_detections, read_detections

BIRDNET = ["Start (s)", "End (s)", "Scientific name", "Common name", "Confidence", "File"]
COLUMNS = ",".join(BIRDNET[:5])
RAVEN = (
    "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)"
    "\tCommon Name\tSpecies Code\tConfidence\tBegin Path\tFile Offset (s)\n"
)
NAMES = ("Strix aluco", "Turdus merula", "Parus major")


def world(rows=3000, seed=0, checked=120):
    """Return detections whose confidences mean something else for each species."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, rows)
    site = rng.integers(0, 4, rows)
    odds = rng.normal(size=rows) + 0.4 * site
    truth = rng.random(rows) < expit(np.array([0.6, 1.0, 1.4])[label] * odds - label + 0.5)
    drawn = np.zeros(rows, bool)
    for k in range(3):
        drawn[rng.choice(np.flatnonzero(label == k), checked, replace=False)] = True
    return label, site, np.round(expit(odds), 4), truth, drawn


def write(path, *, rows=3000, seed=0, correct=True, bom=False):
    label, site, score, truth, drawn = world(rows, seed)
    with path.open("w", newline="", encoding="utf-8-sig" if bom else "utf-8") as file:
        table = csv.writer(file)
        table.writerow([*BIRDNET, "site", *(["correct"] if correct else [])])
        for row in range(rows):
            start = 3.0 * (row // 60)
            name = NAMES[label[row]]
            cells = [start, start + 3, name, name.upper(), score[row], f"rec-{row % 60}.wav"]
            told = [int(truth[row]) if drawn[row] else ""] if correct else []
            table.writerow([*cells, f"site-{site[row]}", *told])
    return label, site, score, truth, drawn


def test_a_birdnet_table_is_read_as_it_stands(tmp_path):
    label, site, score, truth, drawn = write(tmp_path / "birdnet.csv", bom=True)
    found = read_detections(tmp_path / "birdnet.csv", ("site",))
    assert [found.names[k] for k in found.label[:50]] == [NAMES[k] for k in label[:50]]
    assert found.scores.tolist() == score.tolist()
    assert found.facts["site"][:9].tolist() == [f"site-{s}" for s in site[:9]]
    np.testing.assert_array_equal(found.correct, np.where(drawn, truth, np.nan))
    assert (found.start[61], found.files[found.file[61]]) == (3.0, "rec-1.wav")
    # what was not checked are clips with unknown labels
    table = read_scores(tmp_path / "birdnet.csv", None)
    own, row = table.predictions, int(np.flatnonzero(drawn)[0])
    assert int(own.observed.sum()) == drawn.sum() == 360
    assert set(own.group) == {f"rec-{n}.wav" for n in range(60)}
    at = own.ids.index(f"rec-{row % 60}.wav@{3 * (row // 60)}"), own.names.index(NAMES[label[row]])
    assert own.logits[at].item() == pytest.approx(logit(score[row]))
    assert own.labels[at].item() == truth[row]
    assert "checked 360 of 3,000 detections" in table.notes[0]


RAVEN_ROW = "1\tSpectrogram 1\t1\t{0}\t{1}\t0\t15000\t{2}\t{3}\t{4}\t{5}\t{0}\n"
OWL = RAVEN + RAVEN_ROW.format(3.0, 6.0, "Tawny Owl", "tawowl1", 0.5, "/a/x.wav")
PLACE = "lat,lon,week,overlap,sensitivity"
TIMED = "start_time,end_time,species_name,confidence\n"
TIMED += '"/a/x.wav","00:00:03.00","00:00:06.00","Strix aluco_Tawny Owl",0.500000\n'
OWL_IN_X = "Strix aluco", "/a/x.wav"
LAYOUTS = {
    "x.txt": (OWL, "Tawny Owl", "/a/x.wav"),
    "hoplite.csv": (
        "idx,project,filename,window_start,window_end,label,logits\n"
        "17,demo,x.wav,3.0,8.0,comrav,1.23\n",
        *("comrav", "x.wav"),
    ),
    "chirp.csv": ("filename, timestamp_s, label, logit\nx.wav,3,comrav,1.23\n", "comrav", "x.wav"),
    "night.BirdNET.results.csv": (f"{COLUMNS}\n3.0,6.0,,Engine,0.5\n", "Engine", "night"),
    "kaleidoscope.csv": (
        f"INDIR,FOLDER,IN FILE,OFFSET,DURATION,scientific_name,common_name,confidence,{PLACE}\n"
        "/data/,wood,x.wav,3.0,3.0,Strix aluco,Tawny Owl,0.5,-1.0000,-1.0000,-1,0.0,1.0\n",
        *("Strix aluco", "/data/wood/x.wav"),
    ),
    "r.csv": (
        f"filepath,start,end,scientific_name,common_name,confidence,{PLACE},min_conf,species_list,"
        "model\nx.wav,3.0,6.0,,Engine,0.5,-1.0000,-1.0000,-1,0.0,1.0,0.1,,model.tflite\n",
        *("Engine", "x.wav"),
    ),
    "input.csv": (f"input,{TIMED}", *OWL_IN_X),
    "file_path.csv": (f"file_path,{TIMED}", *OWL_IN_X),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_other_layouts(tmp_path, name):
    text, label, file = LAYOUTS[name]
    (tmp_path / name).write_text(text)
    found = read_detections(tmp_path / name)
    kind, score = ("logits", 1.23) if label == "comrav" else ("probs", 0.5)
    assert (found.kind, found.names, found.files) == (kind, (label,), (file,))
    assert (found.start.tolist(), found.scores.tolist()) == ([3.0], [score])
    assert found.log_odds[0] == pytest.approx(0 if kind == "probs" else 1.23)
    assert is_detections(tmp_path / name)
    again = read_detections(tmp_path)  # the folder holds this one table
    assert (again.names, again.files) == (found.names, found.files)


def test_times_of_a_clock_are_seconds(tmp_path):
    rows = ["00:00:00.00", "00:01:03.50", "12:00:00", "100:59:59.999"]
    text = "input,start_time,end_time,species_name,confidence\n"
    path = tmp_path / "long.csv"
    path.write_text(text + "".join(f'"x.wav","{time}","","a_b",0.5\n' for time in rows))
    found = read_detections(path)
    assert found.start.tolist() == pytest.approx([0, 63.5, 43_200, 100 * 3600 + 3599.999])
    path.write_text(text + "x.wav,00:00:03,,a_b,0.5\nx.wav,00:61:00,,a_b,0.5\n")
    with pytest.raises(DataError, match=r"row 2: 'start_time' must be a time .* got '00:61:00'"):
        read_detections(path)


def test_tables_lie_in_folders_as_the_recordings_do(tmp_path):
    """BirdNET repeats the folders of the recordings; recorders name files by the time alone."""
    for site in ("north", "south"):
        (tmp_path / site).mkdir()
        name = tmp_path / site / "20240512_060000.BirdNET.results.csv"
        name.write_text(f"{COLUMNS}\n3.0,6.0,Strix aluco,Tawny Owl,0.5\n")
    (tmp_path / "BirdNET_analysis_params.csv").write_text("Segment length\n3.0\n")
    assert is_detections(tmp_path)
    files = ("north/20240512_060000", "south/20240512_060000")
    assert read_detections(tmp_path).files == files
    combined = f"{COLUMNS},File\n3.0,6.0,Strix aluco,Tawny Owl,0.5,/a/x.wav\n"
    (tmp_path / "BirdNET_CombinedTable.csv").write_text(combined)
    assert read_detections(tmp_path).files == ("/a/x.wav",)
    (tmp_path / "x.BirdNET.results.csv").write_text(combined)
    assert read_detections(tmp_path).files == ("/a/x.wav", *files)  # which the combined one repeats
    (tmp_path / "own.csv").write_text(combined)
    with pytest.raises(DataError, match=r"\(own.csv\) and in folders below \(north/2024.*give one"):
        read_detections(tmp_path)
    for site in ("north", "south"):
        next((tmp_path / site).iterdir()).unlink()
    with pytest.raises(DataError, match="is there twice"):
        read_detections(tmp_path)


def test_tables_as_spreadsheets_and_pandas_write_them(tmp_path):
    """Quoted headers with commas, 1.0 beside empty cells, answers in one table of two, paths of
    Windows: oracle is what the cells say."""
    header = '"File","Note, mine","Confidence","Scientific name","Common name","Start (s)"'
    owl = "Strix aluco,Owl"
    first = f'C:\\north\\a.wav,"x, y",0.5,{owl},0,1.0\nC:\\north\\a.wav,,0.4,{owl},3,0.0\n'
    first = f"{header},correct\n{first}C:\\north\\a.wav,,0.3,{owl},6,\n"
    (tmp_path / "a.csv").write_text(first)
    (tmp_path / "b.csv").write_text(f"{header}\nC:\\south\\b.wav,,0.7,Strix aluco,Owl,0\n")
    found = read_detections(tmp_path)
    assert found.scores.tolist() == [0.5, 0.4, 0.3, 0.7]
    np.testing.assert_array_equal(found.correct, [1, 0, np.nan, np.nan])
    must_run("count", tmp_path, "--by", "folder", "--csv", tmp_path / "calls.csv")
    with (tmp_path / "calls.csv").open() as file:
        assert [row["folder"] for row in csv.DictReader(file)] == ["C:/north", "C:/south"]
    (tmp_path / "a.csv").write_text(f"{header},File\nx.wav,,0.5,Strix aluco,Owl,0,y.wav\n")
    with pytest.raises(DataError, match=r"a.csv: the column 'File' is there twice; keep one"):
        read_detections(tmp_path / "a.csv")


def test_a_table_that_a_german_excel_saved(tmp_path):
    """Oracle: what the cells say; beside points a comma may part thousands, which is asked."""
    rows = ["File;Confidence;Scientific name;Start (s);correct", "a.wav;0,5;Strix aluco;1,5;ja"]
    rows += ["a.wav;0,25;Strix aluco;3;nein", "a.wav;0,75;Strix aluco;6;?"]
    path = tmp_path / "x.csv"
    path.write_text("\n".join(rows), encoding="utf-8-sig")
    found = read_detections(path)
    assert (found.scores.tolist(), found.start.tolist()) == ([0.5, 0.25, 0.75], [1.5, 3, 6])
    np.testing.assert_array_equal(found.correct, [1, 0, np.nan])
    path.write_text("\n".join([*rows, "a.wav;0.25;Strix aluco;9;ja"]))
    with pytest.raises(DataError, match=r"'Confidence' holds both 0,5 and 0\.25; write"):
        read_detections(path)


def test_a_raven_table_without_detections_has_none(tmp_path):
    silent = tmp_path / "y.BirdNET.selection.table.txt"
    silent.write_text(RAVEN + RAVEN_ROW.format(0, 3, "nocall", "nocall", 1.0, "/a/y.wav"))
    with pytest.raises(DataError, match="there are no detections in it"):
        read_detections(silent)
    (tmp_path / "x.BirdNET.selection.table.txt").write_text(OWL)
    found = read_detections(tmp_path)
    assert (found.names, found.files) == (("Tawny Owl",), ("/a/x.wav",))


def test_what_was_checked_may_stand_in_a_second_table(tmp_path):
    write(tmp_path / "all.csv", rows=600, correct=False)
    write(tmp_path / "both.csv", rows=600)
    lines = (tmp_path / "both.csv").read_text().splitlines()
    (tmp_path / "checked.csv").write_text("\n".join(one for one in lines if one[-1] in "t10"))
    one = read_scores(tmp_path / "both.csv", None).predictions
    two = read_scores(tmp_path / "all.csv", None, labels=tmp_path / "checked.csv").predictions
    assert one.ids == two.ids
    for name in ("observed", "labels", "logits"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (",0.", ",1.", r"a confidence must lie in \[0, 1\], got 1\."),
        ("0.0,3.0,", "soon,3.0,", r"row 1: 'Start \(s\)' must be a number, got 'soon'"),
        ("site-0", "", "has no 'site'"),
        ("", "", "is there twice"),
    ],
)
def test_tables_that_cannot_be_meant(tmp_path, old, new, sentence):
    path = tmp_path / "birdnet.csv"
    write(path, rows=400)
    text = path.read_text()
    path.write_text(text.replace(old, new, 1) if old else text + text.splitlines()[5] + "\n")
    with pytest.raises(DataError, match=sentence):
        read_detections(path, ("site",))


def test_answers_that_are_none_and_rows_that_are_not_there(tmp_path):
    write(tmp_path / "all.csv", rows=400, correct=False)
    head = "Start (s),Scientific name,Confidence,File,correct\n"
    for start, told, words in (
        (0.0, "perhaps", "'correct' must be 1, 0, yes, no or empty, got 'perhaps'"),
        (0.5, "1", r"Parus major at 0.5 s of rec-1.wav\) is not a row of"),
    ):
        (tmp_path / "own.csv").write_text(f"{head}{start},Parus major,0.5,rec-1.wav,{told}\n")
        with pytest.raises(DataError, match=words):
            read_scores(tmp_path / "all.csv", None, labels=tmp_path / "own.csv")
    with pytest.raises(DataError, match="nobody has checked a detection"):
        read_scores(tmp_path / "all.csv", None)


def test_scores_are_calibrated_decided_and_applied_without_a_picture(tmp_path):
    label, _, score, truth, drawn = write(tmp_path / "birdnet.csv")
    result = must_run(
        "calibrate", tmp_path / "birdnet.csv", "--calibrator", "platt", "-o", tmp_path / "cal"
    )
    written = pq.read_table(tmp_path / "cal" / "detections.parquet")
    probs = written["probability"].to_numpy()
    assert written["label"].to_pylist()[:20] == [NAMES[k] for k in label[:20]]
    spec = json.loads((tmp_path / "cal" / "link.json").read_text())
    names, link = spec["names"], spec["link"]
    slope, offset = np.array(link["slope"]), np.array(link["offset"])
    column = np.array([names.index(NAMES[k]) for k in label])
    expected = expit(slope[column] * logit(score) + offset[column])
    assert probs == pytest.approx(expected, abs=1e-5)
    for k in range(3):  # as often right as they say, also where nobody looked
        own = (label == k) & ~drawn
        assert probs[own].mean() == pytest.approx(truth[own].mean(), abs=0.08)
    out = tmp_path / "rule.json"
    must_run(
        "calibrate",
        "--calibrator",
        "none",
        tmp_path / "birdnet.csv",
        "--rule",
        "precision-0.5",
        "-o",
        out,
    )
    must_run("predict", out, tmp_path / "birdnet.csv", "-o", tmp_path / "kept.csv")
    with (tmp_path / "kept.csv").open() as file:
        kept = [row["chosen"] == "true" for row in csv.DictReader(file)]
    cuts = json.loads(out.read_text())["thresholds"]
    assert kept == [score[r] >= cuts[NAMES[label[r]]] for r in range(len(label))]
    result = must_run(
        "calibrate", "--calibrator", "none", tmp_path / "birdnet.csv", "--guarantee", "recall=0.6"
    )
    assert "at least 60.0% of the labels of an image are found" in result.stdout


@pytest.mark.parametrize("digits", [0, 2, 9])
def test_each_detection_is_asked_about_under_its_own_label(tmp_path, digits):
    write(tmp_path / "birdnet.csv", rows=600)
    found = read_detections(tmp_path / "birdnet.csv")
    found = replace(found, scores=np.round(found.scores * 0.999, digits))
    asked = found.by_label(lambda odds: odds * np.array([1.0, 10.0, 100.0]))
    assert asked == pytest.approx(found.log_odds * np.array([1.0, 10.0, 100.0])[found.label])


def test_a_species_that_nobody_checked_is_not_guessed(tmp_path):
    write(tmp_path / "birdnet.csv", rows=600)
    rule = ("--rule", "sensitivity-0.9", "-o", tmp_path / "rule.json")
    must_run("calibrate", "--calibrator", "none", tmp_path / "birdnet.csv", *rule)
    text = (tmp_path / "birdnet.csv").read_text().replace("Parus major", "Corvus corax", 1)
    (tmp_path / "other.csv").write_text(text)
    result = run(
        "predict", tmp_path / "rule.json", tmp_path / "other.csv", "-o", tmp_path / "x.csv"
    )
    assert "was fitted without 'Corvus corax'" in str(result.exception)


def test_calls_are_counted_by_site_and_species(tmp_path):
    label, site, _, truth, drawn = write(tmp_path / "birdnet.csv")
    counts = tmp_path / "counts.csv"
    result = must_run("count", tmp_path / "birdnet.csv", "--by", "site", "--csv", counts)
    assert "if a score means the same in every group" in result.stdout
    assert "calls that the program missed are not among them" in result.stdout
    with counts.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    held = 0
    for row in rows:
        cell = (label == NAMES.index(row["label"])) & (site == int(row["site"][-1]))
        said = [int(row[name]) for name in ("detections", "checked", "right")]
        assert said == [part.sum() for part in (cell, cell & drawn, cell & drawn & truth)]
        held += float(row["low"]) <= truth[cell].sum() <= float(row["high"])
    assert held >= 10
    result = must_run("count", tmp_path / "birdnet.csv", "Strix aluco", "--count-by", "answers")
    assert "prediction-powered" in result.stdout


@pytest.mark.parametrize("likeness", [0.0, 0.8])
def test_intervals_of_cells_hold_the_truth_where_recordings_are_alike(likeness):
    held, total = 0, 0
    code = np.repeat(np.arange(60), 20)
    site, same = code // 15, np.zeros(1200, np.int64)
    for seed in range(25):
        rng = np.random.default_rng(seed)
        score, of_one = rng.normal(size=1200), rng.normal(size=60)[code]
        error = np.sqrt(likeness) * of_one + np.sqrt(1 - likeness) * rng.normal(size=1200)
        truth = score + error > 0.3
        correct = np.full(1200, np.nan)
        drawn = rng.choice(1200, 200, replace=False)
        correct[drawn] = truth[drawn]
        odds = logit(ndtr(score - 0.3))
        for one in count_calls(odds, same, ("a",), correct, site, list("0123"), groups=code):
            held += one.low <= truth[site == int(one.part)].sum() <= one.high
            total += 1
    assert held / total > 0.91


def test_recordings_of_a_group_are_alike(tmp_path):
    """Oracle: the same detections in one recording per site, which groups them without a word."""
    path = tmp_path / "a.csv"

    def counted(header, *, by_recording):
        """Count 1,200 detections of one species, right or wrong by site, some of them checked."""
        rng = np.random.default_rng(1)
        fooled = rng.random(12) < 0.5
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*BIRDNET, header, "correct"])
            for row in range(1200):
                site, start = f"site-{row % 12}", 0 if by_recording else row
                right = int(rng.random() < (0.2 if fooled[row % 12] else 0.9))
                cells = [start, start + 3, NAMES[0], NAMES[0], 0.5 + 0.0004 * row]
                cells += [f"rec-{row}.wav" if by_recording else site, site]
                table.writerow([*cells, right if rng.random() < 0.3 else ""])
        must_run("count", path, "--csv", tmp_path / "counts")
        with (tmp_path / "counts").open() as file:
            (cell,) = csv.DictReader(file)
        return float(cell["low"]), float(cell["high"])

    as_files, apart = counted("place", by_recording=False), counted("place", by_recording=True)
    grouped = counted("group", by_recording=True)
    assert grouped == as_files
    assert grouped[1] - grouped[0] > 1.5 * (apart[1] - apart[0])
    assert "of 12 groups;" in read_scores(path, None).notes[0]


def test_a_recording_is_in_one_group_and_one_without_is_alone(tmp_path):
    path, name = tmp_path / "a.csv", NAMES[0]
    rows = [[0, 3, name, name, 0.5, "r1", "a", 1], [3, 6, name, name, 0.5, "r2", "", 0]]

    def written(*more):
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([[*BIRDNET, "group", "correct"], *rows, *more])
        return read_detections(path)

    found = written()
    assert found.groups == ("a", "r2")
    with pytest.raises(DataError, match=r"recording 'r1' is in the groups 'a' and 'b'"):
        written([9, 12, name, name, 0.5, "r1", "b", ""])
    other = replace(found, source="other", groups=None, correct=np.full(2, np.nan))
    assert other.checked_by(found, "a.csv").groups == found.groups
    with pytest.raises(DataError, match="both name groups"):
        found.grouped_by({}, "other")

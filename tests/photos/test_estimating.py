"""Estimates of an index. Oracles: a library whose labels are known, the answers read back."""

import csv
import shutil
from dataclasses import replace

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from scipy.stats import hypergeom
from typed import run

from labelwise.errors import DataError, SettingsError
from labelwise.links import Sigmoid
from labelwise.photos import answer
from labelwise.photos.filters import PhotoGroups
from labelwise.photos.prevalence import (
    SampleAnswers,
    draw_sample,
    estimate_from_answers,
    read_answers,
)
from labelwise.queries import Query

DOG, CAT = Query.parse("dog"), Query.parse("cat")
ALL, FOLDERS = PhotoGroups(), PhotoGroups("folder")


@pytest.fixture(scope="module")
def made_library(tmp_path_factory, model):
    """An index of 600 photos in two folders, where dog is more frequent than the model says."""
    random = np.random.default_rng(0)
    logits = random.normal(-1, 2, (600, 4))
    truth = random.random(600) < Sigmoid()(logits[:, 2] + 1.5)
    folders = ["north" if row % 3 else "south" for row in range(600)]
    return made_index(tmp_path_factory.mktemp("library") / "index", model, logits, folders), truth


@pytest.fixture
def library(made_library, tmp_path):
    folder, truth = made_library
    return open_index(shutil.copytree(folder, tmp_path / "index")), truth


def answered(index, sample, truth):
    rows = index.store.rows_by_hash(map(bytes.fromhex, sample.photos)).values()
    paths = index.store.paths_of(rows)
    return {paths[row][0]: "yes" if truth[row] else "no" for row in rows}


def test_estimates_hold_the_truth_though_the_model_is_wrong(library):
    index, truth = library
    for seed in (0, 1, 2):
        (index.folder / "answers.jsonl").unlink(missing_ok=True)  # so that others are drawn
        sample = draw_sample(index, DOG, 40, seed=seed)
        found = estimate_from_answers(index, DOG, answered(index, sample, truth)).total
        assert found.low <= truth.sum() <= found.high
        assert found.answered == 40


def test_the_same_question_draws_the_same_photos(library):
    index, _ = library
    first, again = (draw_sample(index, DOG, 30) for _ in range(2))
    assert first == again
    assert len(set(first.photos)) == 30
    assert set(draw_sample(index, CAT, 30).photos) != set(first.photos)
    records = index.store.answers.notes("count")
    assert [one["query"] for one in records] == ["dog", "cat"]
    assert records[0]["seed"] == first.seed


def test_folders_are_drawn_from_and_estimated_apart(library):
    """Groups of a table are those of folders with the same photos."""
    index, truth = library
    table = sites(index, [(row, "n" if row % 3 else "s") for row in range(600)])
    found = []
    for grouping in (FOLDERS, table):
        sample = draw_sample(index, DOG, 240, grouping, seed=1)
        assert [len(photos) for photos in sample.drawn.values()] == [120, 120]
        told = answered(index, sample, truth)
        found.append(estimate_from_answers(index, DOG, told, grouping))
    south = np.arange(600) % 3 == 0
    for folder, rows in zip(found[0].groups, (~south, south), strict=True):
        assert folder.photos == rows.sum()
        assert folder.low <= truth[rows].sum() <= folder.high
    assert found[0].total.count == pytest.approx(truth.sum(), abs=60)
    assert [one.group for one in found[1].groups] == ["n", "s"]
    assert [replace(one, group="") for one in found[0].groups] == [
        replace(one, group="") for one in found[1].groups
    ]
    assert found[0].total == found[1].total


def test_answers_must_be_of_the_photos_that_were_drawn(library):
    index, truth = library
    sample = draw_sample(index, DOG, 20)
    told = answered(index, sample, truth)
    rows = set(index.store.rows_by_hash(map(bytes.fromhex, sample.photos)).values())
    (extra,) = index.store.paths_of([min(set(range(600)) - rows)]).values()
    for query, said, why in (
        (DOG, dict([*told.items()][:15]), "5 of the 20 photos drawn for dog have no answer"),
        (DOG, told | {extra[0]: "yes"}, "1 answers are of photos that were not drawn"),
        (CAT, told, "were not drawn for cat"),
        (DOG, {}, "no photo has an answer yet"),
    ):
        with pytest.raises(DataError, match=why):
            estimate_from_answers(index, query, said)


def test_photos_that_are_gone_leave_library_and_sample(library):
    index, truth = library
    sample = draw_sample(index, DOG, 200, seed=1)
    told = answered(index, sample, truth)
    with index.store.transaction():
        index.store.mark_missing(1, "south")
    left = {path: value for path, value in told.items() if "north" in path}
    found = estimate_from_answers(index, DOG, left).total
    assert (found.photos, found.answered) == (400, len(left))
    assert found.low <= truth[np.arange(600) % 3 != 0].sum() <= found.high


def sites(index, names):
    """Write a table that says of each photo, by the number in its name, which site it is of."""
    table, (root,) = index.folder.parent / "sites.csv", index.store.roots().values()
    lines = [f"{root}/{'north' if row % 3 else 'south'}/{row}.jpg,{name}" for row, name in names]
    table.write_text("\n".join(["path,site", *lines]) + "\n")
    return PhotoGroups("site", table)


def test_a_table_may_leave_photos_out_but_not_change_after_the_draw(library):
    index, truth = library
    groups = sites(index, [(row, "few") for row in range(100)])
    drawn = {n: len(some) for n, some in draw_sample(index, DOG, 240, groups).drawn.items()}
    assert drawn == {"(not in the table)": 140, "few": 100}  # all of few; the rest goes on
    sample = draw_sample(index, DOG, 40, groups)
    assert [len(photos) for photos in sample.drawn.values()] == [20, 20]
    with pytest.raises(DataError, match=r"2 groups need an answer each.* at least 2 \(--ask\)"):
        draw_sample(index, DOG, 1, groups)
    told = answered(index, sample, truth)
    sites(index, [(row, "few") for row in range(101)])
    with pytest.raises(DataError, match=r"by site of .* as it is now"):
        estimate_from_answers(index, DOG, told, groups)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,place\na.jpg,x\n", "has no column 'site'; its columns are path, place"),
        ("path,site\nphotos/north/1.jpg,\n", "row 1: photos/north/1.jpg has no site"),
        ("path,site\nx.jpg,a\nx.jpg,b\n", "row 2: x.jpg is in 'a' and in 'b'"),
        ("path,site\nelsewhere.jpg,a\n", "names no photo of"),
    ],
)
def test_tables_that_do_not_group_are_refused(library, text, words):
    index, _ = library
    table = index.folder.parent / "sites.csv"
    table.write_text(text)
    with pytest.raises(DataError, match=words):
        draw_sample(index, DOG, 5, PhotoGroups("site", table))
    for given, why in (("site",), "got 'site' and no table"), (("folder", table), "name a column"):
        with pytest.raises(DataError, match=why):
            PhotoGroups(*given)


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "sample", "query": "dog"}',
        '{"kind": "answers", "query": "dog", "seed": 1, "answers": {"ab": "perhaps"}}',
        '{"query": "dog"}',
        '{"kind": ["sample"]}',
    ],
)
def test_damaged_draws_are_named(library, line):
    index, _ = library
    (index.folder / "samples.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=r"samples.jsonl, line 1|a sample"):
        draw_sample(index, DOG, 5)


@pytest.mark.parametrize(
    ("query", "groups", "expected"),
    [
        ("dog", FOLDERS, {("dog", "present", "estimate"), ("dog", "absent", "estimate")}),
        ("dog, -cat", ALL, {("dog", "present", "estimate"), ("cat", "absent", "estimate")}),
        ("-dog", ALL, {("dog", "absent", "audit"), ("dog", "present", "audit")}),
        ("dog | cat", ALL, set()),
    ],
)  # fmt: skip
def test_only_answers_about_one_label_of_the_whole_library_are_audits(
    library, query, groups, expected
):
    index, truth = library
    asked = Query.parse(query)
    sample = draw_sample(index, asked, 20, groups, seed=2)
    estimate_from_answers(index, asked, answered(index, sample, truth), groups)
    said = {(one.label, one.state, one.source) for one in index.store.corrections()}
    assert said == expected


def test_corrections_after_the_draw_do_not_change_the_estimate(library):
    index, truth = library
    sample = draw_sample(index, DOG, 150, seed=3)
    told = answered(index, sample, truth)
    first = estimate_from_answers(index, DOG, told).total
    for row in range(0, 600, 2):
        index.correct(row, {"dog": "present" if truth[row] else "absent"})
    assert estimate_from_answers(index, DOG, told).total == first


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("photo,answer\na.jpg,yes\n", "there is no column 'path'"),
        ("path,answer\na.jpg,maybe\n", "line 2: the answer must be yes, no or unsure, got maybe"),
        ("path,answer\na.jpg,yes\na.jpg,no\n", "line 3: a.jpg has two different answers"),
    ],
)
def test_tables_that_do_not_answer_are_refused(tmp_path, text, words):
    path = tmp_path / "answers.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=words):
        read_answers(path)
    # empty answers are no answers, and repeated ones count once
    path.write_bytes(b"path,answer\na.jpg,\nb.jpg,Yes\nb.jpg,y\nc.jpg,0\nd\xfc.jpg,?\n")
    assert read_answers(path) == {"b.jpg": "yes", "c.jpg": "no", "dü.jpg": "unsure"}


def test_the_command_draws_reads_and_writes(library, tmp_path):
    index, truth = library

    def count(*words):
        done = run("count", str(index.folder), *map(str, words), "--", "dog")
        return " ".join(done.stdout.split()) if done.exit_code == 0 else str(done.exception)

    said = count()
    assert "It holds if these photos are like the held-out ones" in said
    assert said.startswith(answer(index, Query.parse("dog")).counted)  # whoever is asked
    questions, counts = tmp_path / "questions.csv", tmp_path / "counts.csv"
    assert "120 photos drawn at random" in count("--ask", "120", "-o", questions)
    with questions.open(newline="") as file:
        lines = list(csv.DictReader(file))
    with questions.open("w", newline="") as file:
        table = csv.DictWriter(file, lines[0])
        table.writeheader()
        for line in lines:
            row = int(line["path"].rpartition("/")[2].removesuffix(".jpg"))
            table.writerow(line | {"answer": "yes" if truth[row] else "no"})
    said = count("--answers", questions, "--csv", counts)
    with counts.open(newline="") as file:
        (found,) = csv.DictReader(file)
    assert found["method"] == "prediction-powered"
    low, high = float(found["low"]), float(found["high"])
    assert low - (high - low) < truth.sum() < high + (high - low)  # the draw is not seeded
    assert f"about {float(found['count']):,.0f} of 600 photos match dog" in said
    for options, why in (
        (("--by", "folder"), "draw some with --ask"),
        (("-o", counts), "the counts go to --csv"),
        (("--ask", "5", "-o", questions, "--plot", "x.svg"), "-o only writes the questions"),
    ):
        assert why in count(*options)


def test_the_command_asks_stops_goes_on_and_draws_a_chart(library):
    index, _ = library
    plot, counts = index.folder.parent / "by folder.svg", index.folder.parent / "counts.csv"
    call = ["count", str(index.folder), "dog", "--ask", "4", "--by", "folder"]
    call += ["--plot", str(plot), "--csv", str(counts)]

    def asked(answers):
        return run(*call, input=answers, catch_exceptions=False).output

    said = asked("y\nperhaps\nn\nundo\nstop\n")
    assert "does each photo match dog? 4 photos drawn at random" in said
    assert "'perhaps' is not an answer" in said
    assert "1 of 4 answered and kept; the same command goes on" in said
    session = SampleAnswers(index, DOG, draw_sample(index, DOG, 4, FOLDERS))
    assert list(session.answers.values()) == ["yes"]  # and what was taken back left no correction
    said = [(one.state, one.source) for one in index.store.corrections("dog")]
    assert said == [("present", "estimate")]
    with pytest.raises(DataError, match="3 photos have no answer yet"):
        session.estimate()
    assert not plot.exists()
    said = asked("n\nd\ny\n")
    assert "[3 of 4]" in said
    assert "2 of 4 photos drawn at random match, 1 unsure" in said
    assert "350 of 600" in plot.read_text()
    with counts.open(newline="") as file:
        lines = [
            (line["group"].rpartition("/")[2], line["photos"]) for line in csv.DictReader(file)
        ]
    assert lines == [("north", "400"), ("south", "200"), ("", "600")]
    plot = index.folder.parent / "chart.pdf"
    with pytest.raises(SettingsError, match=r"an .svg file, got chart.pdf"):
        run(*call[:-3], plot, catch_exceptions=False)


def test_known_labels_are_counted_with_intervals_only_where_some_are_unknown(tmp_path):
    """Oracle: counts by hand; the tails of the hypergeometric law by SciPy."""
    lines = [f"n{i}.jpg,{int(i < 3)},{int(i < 5)},north" for i in range(20)]
    lines += [f"s{i}.jpg,1,{int(i < 4) if i < 10 else ''},south" for i in range(30)]
    (tmp_path / "known.csv").write_text("\n".join(["path,dog,cat,site", *lines]) + "\n")
    counts = tmp_path / "counts.csv"
    shown = run("count", tmp_path / "known.csv", "--by", "site", "--csv", counts)
    assert "a random sample of the rest" in shown.output, shown.output
    with counts.open(newline="") as file:
        rows = {(row["label"], row["site"]): row for row in csv.DictReader(file)}
    found = {key: (row["photos"], row["known"], row["with it"]) for key, row in rows.items()}
    assert found == {
        ("cat", "north"): ("20", "20", "5"),
        ("cat", "south"): ("30", "10", "12"),  # 4 of 10
        ("dog", "north"): ("20", "20", "3"),
        ("dog", "south"): ("30", "30", "30"),
    }
    between = {key: row["95% interval"] for key, row in rows.items() if row["95% interval"]}
    possible = [
        total
        for total in range(31)
        if hypergeom.sf(3, 30, total, 10) > 0.025 and hypergeom.cdf(4, 30, total, 10) > 0.025
    ]
    assert between == {("cat", "south"): f"{possible[0]} to {possible[-1]}"}
    all_known = run("count", tmp_path / "known.csv", "dog")
    assert "interval" not in all_known.output
    assert all_known.output.split()[-4:] == ["dog", "50", "50", "33"]

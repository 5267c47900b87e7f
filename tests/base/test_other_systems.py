"""macOS and Windows by ``hidden_system``. Oracles: answers with nothing hidden, allowed names."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from labelwise.models.run_folder import RunFolder
from labelwise.tables.generated import DIGITS

TESTS = Path(__file__).parents[1]
NOT_ON_WINDOWS = re.compile(
    r'[<>:"|?*\\]|[. ]$|^(con|nul|aux|prn|com\d|lpt\d)(\.|$)', re.IGNORECASE
)


def run_script(warm_commands, folder, system, script, *given):
    """Run a script in a folder on a system, and all processes that it starts; return its output."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text("import hidden_system\n")
    own = {
        "LABELWISE_TEST_SYSTEM": system,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(site), str(TESTS), *filter(None, sys.path)]),
    }
    module = TESTS / "hidden_system.py"
    done = warm_commands.start([script, *given], folder, module, **own).wait()
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-4000:])
    return done.stdout


def journeys(warm_commands, folder, system, *given):
    """Run the commands there and return what each said."""
    run_script(warm_commands, folder, system, TESTS / "core_journeys.py", "said.json", *given)
    return json.loads((folder / "said.json").read_text())


def code(warm_commands, folder, system, text):
    """Run code there and return what it printed."""
    (folder / "code.py").write_text(text)
    return run_script(warm_commands, folder, system, folder / "code.py").splitlines()


@pytest.fixture(scope="module")
def on_windows(tmp_path_factory, warm_commands):
    """All journeys, with files as Windows keeps them."""
    folder = tmp_path_factory.mktemp("windows")
    return folder, journeys(warm_commands, folder, "windows")


def check_answer(folder, said):
    """Hold the answer of the server there to that of the model here."""
    expected = RunFolder(folder / "runs" / "demo").model().predict(folder / said["photo"])
    (found,) = said["answer"]["results"]
    by_name = {one["label"]: one["probability"] for one in found["labels"]}
    names = [by_name[name] for name in DIGITS]
    assert names == pytest.approx(expected.probs[0].tolist(), abs=1e-6)


def test_every_first_command_works_as_on_windows(on_windows):
    folder, said = on_windows
    for verb, words in (
        ("predict", "12 of 12 images predicted"),
        ("index again", "1 copied, 10 unchanged, 1 missing"),
        ("tag", "11 written"),
        ("undo", "11 undone"),
        ("export", "decisions differ"),
    ):
        assert words in said[verb]["said"]
    check_answer(folder, said["serve"])
    for verb, words in (
        ("serve", "need Linux: let only people you trust send pictures"),
        ("refused", "need Linux; got --decoders 1"),
    ):
        assert words in said[verb]["complained"]


def test_files_have_names_that_windows_and_macos_can_keep(on_windows):
    folder, _ = on_windows
    paths = [path.relative_to(folder) for path in folder.rglob("*")]
    assert len(paths) > 50
    assert [path for path in paths if NOT_ON_WINDOWS.search(path.name)] == []
    lower = [str(path).lower() for path in paths]
    assert len(set(lower)) == len(lower)
    assert [path for path in paths if path.suffix in (".lock", ".partial")] == []


def test_photos_are_indexed_searched_and_served_as_on_macos(on_windows, tmp_path, warm_commands):
    folder, _ = on_windows
    for name in ("photos", "runs/demo"):
        shutil.copytree(folder / name, tmp_path / name)
    said = journeys(warm_commands, tmp_path, "macos", "runs/demo", "three, -seven")
    assert "11 of 11 images predicted" in said["predict"]["said"]
    assert "1 copied, 9 unchanged, 1 missing" in said["index again"]["said"]
    assert "need Linux" in said["serve"]["complained"]
    check_answer(tmp_path, said["serve"])


LOCKS = """
import sys
from pathlib import Path
from labelwise.errors import LabelwiseError
from labelwise.base.files import locked, replacing
folder = Path("indexed")
folder.mkdir()
with locked(folder) as held:
    try:
        with locked(folder, busy="another command has it"):
            print("both")
    except LabelwiseError as error:
        print(held, error, sorted(path.name for path in Path().glob(".*")))
with locked(folder, busy="still held"):
    pass
with replacing(folder / "a") as temporary:
    temporary.write_text("1")
try:
    with open(folder / "a"), replacing(folder / "a") as temporary:
        temporary.write_text("2")
except LabelwiseError as error:
    print(error)
print(sorted(path.name for path in folder.iterdir()))
print(sorted(path.name for path in Path().glob(".*")))
"""


def test_one_writer_at_a_time_and_open_files_stay_whole_on_windows(tmp_path, warm_commands):
    said = code(warm_commands, tmp_path, "windows", LOCKS)
    assert said[0] == "True another command has it ['.indexed.lock']"
    assert said[1].startswith(f"cannot write {Path('indexed/a')}: no permission to write there")
    assert said[2:] == ["['a']", "[]"]


WITHOUT = """
import os
from labelwise.pictures.worker_starter import can_start
from labelwise.pictures.prefetch import available_cores
from labelwise.base.allocator import keep_freed_memory
print(can_start(), available_cores() == os.cpu_count())
print(keep_freed_memory())
"""


@pytest.mark.parametrize("system", ["macos", "windows"])
def test_what_is_not_there_is_done_without(tmp_path, system, warm_commands):
    assert code(warm_commands, tmp_path, system, WITHOUT) == ["False True", "False"]

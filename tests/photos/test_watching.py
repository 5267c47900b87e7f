"""Oracle: the file system itself; events are those of the real one, where it has them."""

import os
import shutil
import signal
from contextlib import contextmanager

import pytest
from open_indexes import open_index
from patience import PATIENCE
from search_setup import picture

from labelwise.photos.folder_scan import FolderEvents, NoEventsError, file_system


@contextmanager
def watching(*roots, skip=()):
    try:
        events = FolderEvents([str(root) for root in roots], skip)
    except NoEventsError as reason:
        pytest.skip(str(reason))
    with events:
        yield events


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch):
    monkeypatch.setattr("labelwise.photos.folder_scan.QUIET_SECONDS", 0.05)


def test_the_folders_that_changed_are_told_and_no_others(photos):
    with watching(photos) as events:
        assert len(events) == 4
        assert events.wait(0) == {}
        picture(photos / "2023" / "new.png", 50)
        assert events.wait(PATIENCE) == {str(photos): {"2023"}}
        (photos / "2024" / "may" / "2.png").unlink()
        os.link(photos / "0.png", photos / "linked.png")
        assert events.wait(PATIENCE) == {str(photos): {"", os.path.join("2024", "may")}}
        assert events.wait(0) == {}


def test_new_and_moved_folders_are_watched_from_then_on(photos):
    root = str(photos)
    with watching(photos) as events:
        picture(photos / "2025" / "june" / "a.png", 50)
        deep = os.path.join("2025", "june")
        assert events.wait(PATIENCE)[root] >= {"", "2025", deep}
        picture(photos / deep / "b.png", 51)
        assert events.wait(PATIENCE) == {root: {deep}}
        (photos / "2025").rename(photos / "2023" / "later")
        moved = os.path.join("2023", "later", "june")
        assert events.wait(PATIENCE)[root] >= {"", "2025", "2023", moved}
        picture(photos / moved / "c.png", 52)
        assert events.wait(PATIENCE) == {root: {moved}}
        shutil.rmtree(photos / "2023" / "later")
        assert events.wait(PATIENCE)[root] >= {"2023", moved}
        assert len(events) == 4


def test_what_is_passed_over_is_not_watched(photos):
    index = photos / "photos.index"
    index.mkdir()
    with watching(photos, skip={os.path.realpath(index)}) as events:
        for folder in (".hidden", "@eaDir"):
            picture(photos / folder / "thumb.png", 50)
        events.wait(PATIENCE)
        (index / "photos.sqlite").touch()
        picture(photos / ".hidden" / "other.png", 51)
        assert events.wait(0.1) == {}
        assert len(events) == 4


def test_lost_events_and_a_root_that_is_gone_mean_everything(photos):
    names = [photos / "2023" / "1.png", photos / "0.png"]
    with open("/proc/sys/fs/inotify/max_queued_events", encoding="ascii") as file:
        most = int(file.read())
    with watching(photos) as events:
        for number in range(most + 2):
            os.utime(names[number % 2])
        assert events.wait(PATIENCE) is None
        picture(photos / "2023" / "after.png", 50)
        assert events.wait(PATIENCE) == {str(photos): {"2023"}}
        photos.rename(photos.parent / "elsewhere")
        assert events.wait(PATIENCE) is None


def test_disks_of_other_machines_are_looked_at_instead(photos, monkeypatch):
    assert file_system("/proc/self") == "proc"
    assert not file_system(str(photos)).startswith("nfs")
    monkeypatch.setattr("labelwise.photos.folder_scan.file_system", lambda path: "nfs4")
    with pytest.raises(NoEventsError, match=r"may change without telling \(nfs4\)"):
        FolderEvents([str(photos)])


def test_an_update_of_some_folders_looks_at_no_others(update, photos):
    update()
    root = str(photos)
    picture(photos / "2023" / "new.png", 50)
    picture(photos / "2024" / "unseen.png", 51)
    changes = update(only={root: {"2023"}})
    assert (changes.new, changes.unchanged) == (1, 4)
    # Of what is gone only a look at the whole root can tell whether a disk is missing.
    (photos / "0.png").unlink()
    changes = update(only={root: {""}})
    assert (changes.new, changes.missing, changes.unchanged) == (1, 1, 12)
    changes = update(only={root: {"", "no such folder"}})
    assert (changes.new, changes.missing, changes.unchanged) == (0, 0, 13)
    aside = photos.parent / "aside"
    photos.rename(aside)
    photos.mkdir()
    changes = update(only={root: {"", "2023"}})
    assert "is its disk mounted?" in changes.refused[0]
    assert open_index(update.folder).store.count_files() == {"ok": 13, "missing": 1}


def test_a_photo_copied_in_is_searchable_at_once_and_ctrl_c_ends_it(
    update, photos, model, warm_commands
):
    with watching(photos):  # skips where there are none
        pass
    words = ["index", photos, "--model", model, "-o", update.folder, "--watch"]
    with warm_commands.running(words, photos.parent) as process:
        assert process.line(0) == f"{update.folder}: 12 new\n"
        assert process.line(1) == "watching 4 folders; Ctrl-C stops\n"
        picture(photos / "2023" / "new.png", 50)
        assert process.line(2) == f"{update.folder}: 1 new, 4 unchanged\n"
        assert open_index(update.folder).store.row_of(str(photos / "2023" / "new.png")) == 12
        os.kill(process.pid, signal.SIGINT)
        done = process.wait()
        assert done.returncode == 130
        assert done.stderr.count("\n") == 1

"""Run the tables in ``corpus/`` as a person would, and judge what comes of each.

    python tests/tables/corpus_runner.py [--only NAME] [--show WRONG]

``corpus/cases.jsonl`` says what is right, one table a line; people wrote it, labelwise did not:

    name, file  the table; ``@ROOT@`` in it stands for the folder of the photos
    is          "clear": one meaning. "ask": two meanings, so it must stop. "refuse": it must stop,
                unless it reads what is right
    right       readings that are right: the labels, and each photo's states in their order
                (1 present, 0 absent, ? unknown, s soft); perhaps their split and group, and
                patterns that it must print then (``tells``)
    set         what a person gives with ``--set``
    says        patterns that must be in the sentence by which it stops
    photos      photos that are there, where they are not those of the first reading

A reading of "ask" is reached by one of the remedies in backticks. Each is copied and run.
"""

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyarrow.parquet as pq
import typed
from warm_commands import put_together_once

from labelwise.errors import LabelwiseError

FOLDER = Path(__file__).with_name("corpus")
PLACEHOLDER = re.compile(r"\b(NAME|FILE|FOLDER|COLUMN|TABLE|PHOTOS|WORD|ENCODING)\b|\.\.\.|…")
CHANGE = re.compile(
    r"`|\b(give|write|save|say|name|rename|correct|leave|keep|remove|put|needs?|export|belongs?)\b"
    r"|\b(mean|empty)\b",
    re.IGNORECASE,
)
INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff"))
MOST_STEPS, MOST_REMEDIES = 3, 8
AT_ONCE, AFTER_ONE, AFTER_MORE = "right at once", "right after one remedy", "right after more"
STOPPED, MUTE, WRONG, CRASH = "stopped", "stopped, unclear", "SILENTLY WRONG", "CRASH"
OUTCOMES = (AT_ONCE, AFTER_ONE, AFTER_MORE, STOPPED, MUTE, WRONG, CRASH)


@dataclass(frozen=True)
class Outcome:
    """What came of a table: one of ``OUTCOMES``, why, and the remedies that led elsewhere."""

    kind: str
    why: str = ""
    astray: tuple[str, ...] = ()


def cases(only=""):
    """Return the tables whose name contains ``only``."""
    lines = (FOLDER / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    return [case for case in map(json.loads, lines) if only in case["name"]]


def judge(case, folder, content=None):
    """Return what comes of a table that is written, with its photos, into an empty folder."""
    table = folder / case["file"]
    content = (FOLDER / case["file"]).read_bytes() if content is None else content
    table.write_bytes(content.replace(b"@ROOT@", bytes(folder)))
    for photo in case.get("photos") or [
        name for right in case["right"] for name in right["photos"]
    ]:
        place = folder / photo
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    sets = [word for option in case.get("set", ()) for word in ("--set", option)]
    try:
        return _judge(case, folder, ["data", "convert", str(table), *sets])
    except _CrashError as crash:
        return Outcome(CRASH, str(crash))


class _CrashError(Exception):
    pass


def _judge(case, folder, command):
    said, reading = convert(command, folder)
    if reading is not None:
        wrong = differs(reading, said, case)
        if not wrong and case["is"] == "ask":
            wrong = "it did not ask, and two readings are possible"
        return Outcome(WRONG, wrong) if wrong else Outcome(AT_ONCE)
    table = case["file"]
    missing = [] if Path(table).stem in said else [f"the file {table}"]
    missing += [f"/{pattern}/" for pattern in case.get("says", ()) if not re.search(pattern, said)]
    missing += [] if CHANGE.search(said) else ["what to change"]
    steps, astray, dead, fresh = [(command, said)], [], 0, {tuple(command)}
    for step in range(1, MOST_STEPS + 1):
        later, led = [], ""
        for before, sentence in steps:
            for remedy in remedies(sentence)[:MOST_REMEDIES]:
                line = completed(remedy, before)
                if line is None or tuple(line) in fresh:
                    continue
                fresh.add(tuple(line))
                answer, reading = convert(line, folder)
                if reading is None:
                    later.append((line, answer))
                    dead += step == 1 and not remedies(answer)
                elif wrong := differs(reading, answer, case, told=True):
                    astray.append(f"`{remedy}`: {wrong}")
                else:
                    led = led or f"`{remedy}`"
        if led:
            return Outcome(AFTER_ONE if step == 1 else AFTER_MORE, led, tuple(astray))
        if astray:
            return Outcome(WRONG, f"by our own remedy {astray[0]}", tuple(astray[1:]))
        steps = later[:MOST_REMEDIES]
    if missing:
        return Outcome(MUTE, f"does not say {', '.join(missing)}: {said}")
    return Outcome(STOPPED, f"({dead} remedies fail) {said}" if dead else said)


def convert(command, folder):
    """Return what a command printed, and the reading it wrote, None if it stopped."""
    out = folder / "out.parquet"
    out.unlink(missing_ok=True)
    result = typed.run(*command, "-o", out)
    error = result.exception
    if error is not None and not isinstance(error, LabelwiseError | SystemExit):
        raise _CrashError(f"{type(error).__name__}: {error}")
    said = result.output + (str(error) if isinstance(error, LabelwiseError) else "")
    return said, written(out, folder) if result.exit_code == 0 else None


def written(out, folder):
    """Return the reading in a Parquet file: photos by their place below ``folder``."""
    table = pq.read_table(out)
    labels = json.loads(table.schema.metadata[b"classes"])
    photos, split, group = {}, {}, {}
    for row in table.to_pylist():
        place = (folder / row["path"].removeprefix("file://")).resolve()
        photo = str(place.relative_to(folder.resolve()))
        present, unknown = row.get("labels"), row.get("unknown") or ()
        open_ = {*labels} if present is None or "*" in unknown else {*unknown}
        shown = dict.fromkeys(labels, "0") | dict.fromkeys(open_, "?")
        shown |= dict.fromkeys(row.get("soft") or (), "s") | dict.fromkeys(present or (), "1")
        photos[plain(photo)] = "".join(shown[name] for name in labels)
        split[plain(photo)], group[plain(photo)] = row.get("split"), row.get("group")
    return {"labels": labels, "photos": photos, "split": split, "group": group}


def plain(text):
    """Return text composed, and without the letters that nobody sees."""
    return unicodedata.normalize("NFC", text.translate(INVISIBLE)).replace("\u00a0", " ")


def differs(reading, said, case, told=False):
    """Return how a reading differs from what is right, "" if it is right and says what it left."""
    why = "read, and nothing of it can be right"
    for right in reversed(case["right"]):
        silent = [p for p in right.get("tells", ()) if not told and not re.search(p, said)]
        silence = f"it says nothing of {', '.join(silent)}" if silent else ""
        why = _differs(reading, right) or silence
        if not why:
            break
    return why


def _differs(reading, right):
    names, wanted = list(map(plain, reading["labels"])), list(map(plain, right["labels"]))
    if sorted(names) != sorted(wanted):
        return f"labels {sorted(names)}, right: {sorted(wanted)}"
    photos = {plain(photo): states for photo, states in right["photos"].items()}
    if reading["photos"].keys() != photos.keys():
        return f"photos {sorted(reading['photos'])}, right: {sorted(photos)}"
    places = [names.index(name) for name in wanted]
    for photo, states in photos.items():
        got = "".join(reading["photos"][photo][place] for place in places)
        if got != states:
            return f"{photo} is {got}, right: {states} of {wanted}"
    for kind in ("split", "group"):
        for photo, value in right.get(kind, {}).items():
            if reading[kind][plain(photo)] != value:
                return f"the {kind} of {photo} is {reading[kind][plain(photo)]}, right: {value}"
    return ""


def remedies(said):
    """Return what stands in backticks and can be copied, the last and most complete first."""
    found = re.findall(r"`([^`]+)`", said)
    usable = [
        r for r in found if r.startswith(("--", "labelwise data ")) and not PLACEHOLDER.search(r)
    ]
    return list(dict.fromkeys(reversed(usable)))


def completed(remedy, command):
    """Return the whole command that a remedy stands for, None if it is another verb's."""
    try:
        parts = shlex.split(remedy)
    except ValueError:
        return [*command, remedy]  # a quote is missing: what a shell would not run fails here
    if parts[0].startswith("--"):
        return [*command, *parts]
    if parts[2] != "convert":
        return None
    cut = parts.index("-o") if "-o" in parts else len(parts)
    rest = [*parts[3:cut], *parts[cut + 2 :]]
    place = next(
        (n for n, word in enumerate(rest) if Path(word).name == Path(command[2]).name), None
    )
    return ["data", "convert", *(command[2] if n == place else word for n, word in enumerate(rest))]


def shares(judged):
    """Return the shares right at once (of clear tables) and after at most one remedy."""
    clear = [outcome.kind for case, outcome in judged if case["is"] == "clear"]
    open_ = [outcome.kind for case, outcome in judged if case["is"] != "refuse"]
    near = open_.count(AT_ONCE) + open_.count(AFTER_ONE)
    return clear.count(AT_ONCE) / max(1, len(clear)), near / max(1, len(open_))


def run(only=""):
    """Return (table, outcome) for each table of the corpus."""
    judged = []
    for case in cases(only):
        with tempfile.TemporaryDirectory() as folder:
            judged.append((case, judge(case, Path(folder).resolve())))
    return judged


def main():
    os.environ["LABELWISE_OVERWRITE"] = "1"
    put_together_once()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="tables whose name contains this")
    parser.add_argument("--show", default="", help="outcomes that contain this, such as WRONG")
    given = parser.parse_args()
    judged = run(given.only)
    for case, outcome in judged:
        if given.show in outcome.kind:
            print(f"{case['name']:32} {case['is']:7} {outcome.kind:22} {outcome.why[:400]}")
            for line in outcome.astray:
                print(f"{'':40} another remedy leads astray: {line[:300]}")
    print()
    counts = Counter((case["is"], outcome.kind) for case, outcome in judged)
    for kind in OUTCOMES:
        row = (f"{is_} {counts[is_, kind]:4}" for is_ in ("clear", "ask", "refuse"))
        print(f"{kind:24}", "   ".join(row))
    at_once, after_one = shares(judged)
    print(f"right at once {at_once:.1%} of clear tables; after at most one remedy {after_one:.1%}")


if __name__ == "__main__":
    main()

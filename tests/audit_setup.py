"""A folder of photos with machine tags, some of them wrong, and people who know the truth."""

import csv
import json

import numpy as np
from search_setup import picture

NAMES = ("beach", "bird", "cat", "dog", "night", "tree")
GOOD = np.array([True, True, True, True, False, True])


def tagged_photos(folder, photos=150, seed=0):
    """Write photos and tags.csv; return {photo: what it shows} and {photo: how it is tagged}."""
    rng = np.random.default_rng(seed)
    shows = rng.random((photos, len(NAMES))) < 0.4
    false = rng.random(shows.shape) < np.where(GOOD, 0.01, 0.5)
    tags = np.where(shows, rng.random(shows.shape) < 0.8, false)
    one = picture(folder / "photos" / "000.png", 0).read_bytes()
    paths = [f"{row:03d}.png" for row in range(photos)]
    for path in paths:
        (folder / "photos" / path).write_bytes(one)
    named = ([{NAMES[k] for k in np.flatnonzero(own)} for own in mask] for mask in (shows, tags))
    truth, tagged = (dict(zip(paths, names, strict=True)) for names in named)
    with (folder / "tags.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "labels"])
        writer.writerows([path, "|".join(sorted(own))] for path, own in tagged.items())
    return truth, tagged


def truthful(questions, truth):
    """Answer the questions of a spreadsheet by the truth."""
    with questions.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        shows = truth[row["path"].rpartition("/")[2]]
        if row["tag"] == "*":
            listed = row["tags"].split(", ")
            row["answer"] = ", ".join(tag if tag in shows else f"-{tag}" for tag in listed)
        else:
            row["answer"] = "yes" if row["tag"] in shows else "no"
    with questions.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return rows


def as_responses(path, tagged):
    """Write tags as Ollama and OpenAI answer, in all their shapes."""
    with path.open("w") as stream:
        for number, (photo, own) in enumerate(tagged.items()):
            tags = sorted(own)
            fenced = f"```json\n{json.dumps({'tags': tags})}\n```"
            scored = json.dumps([{"label": tag, "confidence": 0.9} for tag in tags])
            body = {"choices": [{"message": {"content": fenced}}]}
            message = {"type": "message", "content": [{"type": "output_text", "text": scored}]}
            line = [
                {"path": photo, "model": "llava", "response": ", ".join(tags), "done": True},
                {"path": photo, "message": {"role": "assistant", "content": json.dumps(tags)}},
                {"custom_id": photo, "response": {"status_code": 200, "body": body}, "error": None},
                {"photo": photo, "output": [{"type": "reasoning", "summary": []}, message]},
                {"path": photo, "response": "Tags:\n- " + "\n- ".join(tags).title() + "\n"},
            ][number % 5]
            stream.write(json.dumps(line) + "\n")

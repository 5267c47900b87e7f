"""The dossier of a run: what is known about a model, for those who must judge it, on one page.

Its sections follow the headings of Annex IV of the EU's AI Act (technical documentation), and
within them those of a model card (Mitchell et al., 2019). It states what was recorded and measured,
says "not stated" where nothing was, and makes no claim that any law or standard is met.
"""

import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from labelwise.base.files import sha256_of, together, write_text
from labelwise.base.markup import Markup, document, join, paragraph, section, table, tag
from labelwise.base.text import counted, listed
from labelwise.decide import Promise
from labelwise.decide.promises import ids_digest
from labelwise.evaluation import Evaluation, describe_link
from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index, verify_lists
from labelwise.pictures.transform import Transform
from labelwise.predictions import Predictions
from labelwise.report.labels import calibration, curves, labels, subgroup_tables
from labelwise.report.page import facts, glance, how
from labelwise.report.runs import measured_run, origin_of
from labelwise.scores import read_run

FEW = 20
FILES = ("settings.yaml", "model.json", "model.safetensors", "evaluation.json")
STORED = "predictions/*.parquet"
NOT_STATED = "Not stated."
_WORDS = tomllib.loads(files("labelwise.report").joinpath("dossier.toml").read_text("utf-8"))
ANNEX_IV: dict[str, str] = _WORDS["headings"]


def write_dossier(
    run: Path,
    split: str,
    folder: Path,
    figures: Mapping[str, Any],
    *,
    intended_use: str | None = None,
    index: Path | None = None,
) -> None:
    """Write ``dossier.html`` and ``dossier.json`` of a run, measured on one of its splits."""
    evaluation, _ = measured_run(run, split, None, figures)
    known = _known(run, split, evaluation, intended_use, index)
    title = f"Dossier of {RunFolder(run).name}"
    record = {"title": title, "disclaimer": _WORDS["disclaimer"]}
    record |= {ANNEX_IV[name]: content for name, content in known.items()}
    record[ANNEX_IV["metrics"]] = json.loads(evaluation.to_json())
    parts = {name: _shown(content) for name, content in known.items()}
    unknown = "No subgroup was named: how the model treats different sites, cameras or groups of "
    unknown += "people is not known."
    subgroups = subgroup_tables(evaluation) or [paragraph(unknown, class_="note")]
    opening = paragraph(facts(evaluation)), glance(evaluation, {}), tag("h3", "By subgroup")
    shown = (draw(evaluation) for draw in (calibration, labels, curves, how))
    parts["metrics"] = join(*opening, *subgroups, *shown)
    sections = [(name, text, section(name, text, parts[name])) for name, text in ANNEX_IV.items()]
    page = document(title, _WORDS["disclaimer"], sections)
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    with together():
        write_text(folder / "dossier.json", text + "\n")
        write_text(folder / "dossier.html", page)


def _known(
    run: Path, split: str, evaluation: Evaluation, use: str | None, index: Path | None
) -> dict[str, object]:
    files, own = RunFolder(run), read_run(run, split)
    spec, link, origin = files.spec, files.spec.made_link, origin_of(files)
    promises = own.promises or tuple(Promise.from_spec(promise) for promise in spec.promises)
    stated = [f"{promise} (not checked here)." for promise in promises]
    fitted = f"{split}, which took part in fitting the model or its rule, and so are too good."
    is_fitted = split == "promise" or split in files.fitted_splits
    took_part = [f"All figures are of {fitted}"] * is_fitted
    records, receipts = len(files.journal.read()), ["No index was given: no receipt is shown."]
    if index is not None:
        with Index(index) as opened:
            verified = verify_lists(opened, None)
        receipts = [
            f"Receipt {receipt.number}, {receipt.query}: {receipt.promise}; now: {verdict}."
            for receipt, verdict in verified.lists
        ]
        receipts.append(f"{verified.together}." if receipts else "The index has no receipt.")
    return {
        "general": {
            "intended use": use or "Not stated: give it with --intended-use",
            "model": {
                "Task": f"which of {len(spec.labels):,} labels a picture carries: none, one or "
                "many",
                "Method": spec.method,
                "Backbone": f"{spec.backbone.name}, {spec.backbone.channels:,} channels",
                "Head": spec.head.name,
                "Input": described_input(spec.transform),
                "Probabilities": "none: it ranks" if link is None else describe_link(link),
                "Decides by": str(spec.made_rule),
                "Taxonomy": "none" if spec.taxonomy is None else f"{len(spec.taxonomy):,} parents",
                "Labels": listed(spec.labels, 200),
            },
        },
        "development": {
            "data": {"Source": origin.get("Data", ""), "Measured on": f"the split {split}"},
            "splits": [_split(files, name) for name in files.splits],
            "training": {name: text for name, text in origin.items() if name != "Data"},
            "versions": dict(spec.versions),
            "hashes": {
                path.relative_to(run).as_posix(): sha256_of(path)
                for path in [run / name for name in FILES] + sorted(run.glob(STORED))
                if path.is_file()
            },
        },
        "monitoring": {
            "promises": list(own.standing()) or stated or ["No guarantee was made."],
            "receipts": receipts,
        },
        "metrics": {},
        "risks": took_part + _limits(evaluation, own.predictions),
        "changes": [
            f"{records:,} records of training in metrics.jsonl."
            if records
            else "No record of training in this folder.",
            "The run and its hashes above are one state; a run trained or calibrated again has "
            "other hashes and needs a dossier of its own.",
        ],
        **_WORDS["left_to_people"],
    }


def _shown(content: Any) -> Markup:
    """Return plain data as markup: text, facts by name, sentences, rows, or parts with a title."""
    if not content or isinstance(content, str):
        return paragraph(content or NOT_STATED)
    if isinstance(content, Mapping) and all(isinstance(text, str) for text in content.values()):
        facts = ((tag("dt", name), tag("dd", text or NOT_STATED)) for name, text in content.items())
        return tag("dl", *(tag("div", *fact) for fact in facts), class_="origin")
    if isinstance(content, Mapping):
        parts = ((tag("h3", name.capitalize()), _shown(part)) for name, part in content.items())
        return join(*(join(*part) for part in parts))
    if isinstance(content[0], Mapping):
        rows = [list(row.values()) for row in content]
        caption = "The run's splits: training fits weights; validation, link and rule; test none."
        return table(list(content[0]), rows, caption=caption, wide=True, pinned=True)
    return tag("ul", *(tag("li", sentence) for sentence in content))


def described_input(transform: Transform) -> str:
    """Return what the network sees of a picture, in words."""
    size, bands = f"pictures at {transform.size} pixels", transform.bands
    if bands is None:
        return f"{size}, 8-bit RGB"
    window = "" if bands.window == "none" else f", window {bands.window}"
    return f"{size}, bands at full depth: {', '.join(bands.names)}{window}"


def _split(files: RunFolder, name: str) -> dict[str, str]:
    rows = files.predictions(name)
    unknown = 0 if rows.observed is None else int((~rows.observed).sum())
    return {
        "split": name,
        "photos": f"{len(rows):,}",
        "labels present": f"{int(rows.majority.sum()):,}",
        "unknown": f"{unknown:,}",
        "groups": "none named" if rows.group is None else f"{len(set(rows.group)):,}",
        "SHA-256 of the photos' names": ids_digest(rows.ids),
    }


def _limits(evaluation: Evaluation, rows: Predictions) -> list[str]:
    limits = ["All figures are of the photos measured here; of other kinds they may be far worse."]
    limits.append("Things that are none of its labels are not seen.")
    few = [row.name for row in evaluation.rows if 0 < row.present < FEW]
    if few:
        labels = f"{counted(len(few), 'label')} ({listed(few, 12)})"
        limits.append(f"With fewer than {FEW} positives here: {labels}.")
    undefined = evaluation.ranking.undefined_labels
    if undefined:
        limits.append(f"Never seen with a positive here: {counted(len(undefined), 'label')}.")
    if rows.group is None:
        limits.append("No groups are named: if photos come in groups, intervals are too narrow.")
    if not evaluation.subgroups:
        limits.append("Not examined for differences between subgroups: none were named.")
    lone = sum(row.groups < 2 for row in evaluation.subgroups)
    if lone:
        unsaid = "nothing can be said about their difference from others"
        limits.append(f"{lone:,} subgroups are one group of photos each, so that {unsaid}.")
    return [*limits, *evaluation.notes]

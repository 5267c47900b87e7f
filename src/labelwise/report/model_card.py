"""The model card of a folder for a hub: what a model is for, what was measured, where it ends.

Everything in it comes from the model and from an evaluation on photos the model was not trained
with; what nobody measured is said to be unknown.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from labelwise import __version__
from labelwise.base.document import INFINITE, UNDEFINED, charts_of, percent, plain
from labelwise.base.files import together, write_text
from labelwise.base.text import listed
from labelwise.decide import Promise
from labelwise.evaluation import Evaluation, LabelRow, describe_link
from labelwise.exports.hub import HubModel
from labelwise.links import Softmax
from labelwise.report.labels import calibration

CARD_FILE = "README.md"
PICTURE = "reliability.svg"
FEW = 20  # positives below which the figures of a label say little
NAMED = 12  # labels named in a sentence


def write_model_card(folder: Path, model: HubModel, evaluation: Evaluation, **facts: Any) -> None:
    """Write ``README.md``, and ``reliability.svg`` if the model has probabilities."""
    with together():
        write_text(Path(folder) / CARD_FILE, model_card(model, evaluation, **facts))
        if evaluation.final is not None:
            chart = next(iter(charts_of(calibration(evaluation) or "").values()))
            write_text(Path(folder) / PICTURE, chart)


def model_card(
    model: HubModel, evaluation: Evaluation, *, title: str, data: str, license: str | None = None
) -> str:
    """Return the card as Markdown with the facts in front that hubs read."""
    use = "To tag, sort and search pictures like those it was trained on, where a wrong or missing "
    use += "label can be put right."
    meant = "Its scores order labels and pictures; they are not probabilities."
    if model.predictor.link is not None:
        meant = "Probabilities may be used as such: to choose thresholds, to weigh costs."
    parts = [
        _front(model, evaluation, title, data, license),
        f"# {_words(title)}",
        _summary(model),
        "## Measured",
        _measured(evaluation, data),
        "## Use",
        _use(model),
        "## Intended use",
        f"{use} {meant}",
        "## Limits",
        "\n".join(f"* {sentence}" for sentence in _limits(model, evaluation, data)),
        "## Labels",
        ", ".join(map(_words, model.predictor.space.names)) + ".",
        f"Written by labelwise {__version__}.",
    ]
    return "\n\n".join(parts) + "\n"


def _front(
    model: HubModel, evaluation: Evaluation, title: str, data: str, license: str | None
) -> str:
    metrics: list[dict[str, object]] = []
    for figure in evaluation.headline:
        if figure.value is not None:
            kind = figure.name.lower().replace(" ", "_").replace(",", "")
            value = round(figure.value, 6)
            metrics.append({"type": kind, "name": figure.name, "value": value})
    task = {"type": "image-classification", "name": "Multi-label image classification"}
    result = {"task": task, "dataset": {**task, "name": data}, "metrics": metrics}
    more = {"calibrated": evaluation.final is not None, "timm": model.loads_in_timm}
    more["transformers"] = model.loads_in_transformers
    tags = ["image-classification", "multi-label", "labelwise", *filter(more.get, more)]
    facts: dict[str, Any] = {
        **({} if license is None else {"license": license}),
        "library_name": "timm" if model.loads_in_timm else "labelwise",
        "pipeline_tag": "image-classification",
        "tags": tags,
        "model-index": [{"name": title, "results": [result]}],
    }
    return f"---\n{yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)}---"


def _summary(model: HubModel) -> str:
    predictor, network = model.predictor, model.predictor.model
    views = network.crops * (2 if network.mirrored else 1)
    link = "it ranks labels and has no probabilities"
    if predictor.link is not None:
        link = f"probabilities by the link {describe_link(predictor.link)}"
    words = [
        f"Says which of {len(predictor.space):,} labels a picture carries: none, one or many.",
        f"{_words(network.backbone.name)} at {predictor.transform.size} pixels, "
        f"head {predictor.head.name}, trained with the method "
        f"{_words(predictor.method or 'unknown')}; {link}; decides by {predictor.rule}.",
    ]
    if views > 1:
        words.append(f"Its logits are the mean over {views} views of a picture.")
    return " ".join(words)


def _measured(evaluation: Evaluation, data: str) -> str:
    facts = evaluation.data
    split = f" ({facts.split})" if facts.split and facts.split != data else ""
    where = f"On {facts.rows:,} pictures of {_words(data)}{split}, {facts.zero_label_rows:,} of "
    where += "them without any label:"
    rows = ["| | value | 95 % interval | |", "|---|---|---|---|"]
    for figure in evaluation.headline:
        show = percent if figure.percent else plain
        value = INFINITE if evaluation.is_infinite(figure) else show(figure.value)
        known = figure.low is not None and figure.high is not None
        interval = f"{show(figure.low)} to {show(figure.high)}" if known else UNDEFINED
        rows.append(f"| {figure.name} | {value} | {interval} | {_words(figure.how)} |")
    parts = [where, "\n".join(rows)]
    if evaluation.final is not None:
        parts.append(f"![How often labels of each probability are there]({PICTURE})")
    ranked = sorted((row for row in evaluation.rows if row.ap is not None), key=lambda r: r.ap or 0)
    if ranked:
        ends = f"best: {_with_ap(ranked[-3:][::-1])}. Ranked worst: {_with_ap(ranked[:3])}"
        parts.append(f"Labels ranked {ends} (average precision, pictures with the label).")
    return "\n\n".join(parts)


def _with_ap(rows: Sequence[LabelRow]) -> str:
    return ", ".join(f"{_words(row.name)} ({percent(row.ap)}, {row.present:,})" for row in rows)


def _use(model: HubModel) -> str:
    parts = [
        "```console\n$ pip install .  # in a clone of labelwise\n"
        "$ labelwise predict FOLDER photos/\n```",
        "`model.json` holds labels, transform, link, rule and promises as plain data; "
        "`labelwise train --weights FOLDER` begins with this backbone.",
    ]
    if not model.loads_in_timm:
        return "\n\n".join([*parts, f"timm cannot load this folder: {_words(model.why_not_timm)}."])
    parts.append(
        "```python\nimport timm\n\n"
        'model = timm.create_model("local-dir:FOLDER", pretrained=True).eval()\n'
        "config = timm.data.resolve_model_data_config(model)\n"
        "transform = timm.data.create_transform(**config, is_training=False)\n"
        "logits = model(transform(picture)[None])\n```"
    )
    link = model.predictor.link
    function = "softmax of all" if isinstance(link, Softmax) else "sigmoid of each"
    if model.loads_in_transformers:
        parts += [
            f"timm gives logits; the {function} is the calibrated probability.",
            "```python\nfrom transformers import pipeline\n\n"
            'tagger = pipeline("image-classification", "FOLDER")\n'
            f'tagger("photo.jpg", top_k={len(model.predictor.space)})\n```',
            "transformers gives the same probabilities as labelwise, of photos without an alpha "
            "channel; it does not decide which labels apply, `model.json` has that rule.",
        ]
        return "\n\n".join(parts)
    if link is not None:
        own = f"the link {describe_link(link)} in `model.json`, which labelwise applies"
        parts.append(f"timm gives logits. Probabilities are those of {own}.")
    if model.predictor.model.mirrored or model.predictor.model.crops > 1:
        parts.append("timm looks at one view of a picture, labelwise at several.")
    parts.append(f"transformers refuses this folder: {_words(model.why_not_transformers)}.")
    return "\n\n".join(parts)


def _limits(model: HubModel, evaluation: Evaluation, data: str) -> Iterable[str]:
    def named(names: Sequence[str]) -> str:
        return listed([*map(_words, names)], NAMED)

    measure = "measure it: `labelwise evaluate FOLDER --data labelled.csv`"
    worse = "On pictures of another kind they may be far worse"
    yield f"All figures are of {_words(data)}. {worse}; {measure}."
    yield "Things that are none of its labels are not seen; the answer is then none, or wrong."
    yield "It was not examined for how it treats groups of people."
    undefined = evaluation.ranking.undefined_labels
    if undefined:
        yield f"Never seen with a positive where it was measured: {named(undefined)}."
    few = [row.name for row in evaluation.rows if 0 < row.present < FEW]
    if few:
        yield f"Fewer than {FEW} positives, so that their figures say little: {named(few)}."
    worst = [row for row in evaluation.rows if row.present >= FEW and _ece(row) is not None]
    if worst:
        far = max(worst, key=lambda row: _ece(row) or 0.0)
        yield f"Least calibrated label: {_words(far.name)}, ECE {percent(_ece(far))}."
    zero = evaluation.zero_label
    if zero is not None and zero.false_alarms is not None:
        yield f"{percent(zero.false_alarms)} of pictures without labels are given one."
    elif zero is None or not zero.rows:
        yield "How often it labels pictures that carry none is unknown: there were none."
    for promise in model.predictor.promises:
        yield f"{_words(str(Promise.from_spec(promise)))}, for pictures like those."
    for note in evaluation.notes:
        yield _words(note)


def _ece(row: LabelRow) -> float | None:
    return row.ece_before if row.ece_after is None else row.ece_after


def _words(text: str) -> str:
    """Return text with the characters escaped that Markdown or HTML would read as markup."""
    line = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in line)

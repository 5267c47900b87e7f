"""The dossier of a run: what is known about a model, for those who must judge it, on one page.

Its sections follow the headings of Annex IV of the EU's AI Act (technical documentation), and
within them those of a model card (Mitchell et al., 2019). It states what was recorded and measured,
says "not stated" where nothing was, and makes no claim that any law or standard is met.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labelwise.evaluation import Evaluation
from labelwise.markup import Markup, document, join, paragraph, section, table, tag
from labelwise.report.calibration import calibration
from labelwise.report.curves import curves, subgroup_tables
from labelwise.report.labels import labels
from labelwise.report.page import facts, glance, how
from labelwise.system.files import replacing

NOT_STATED = "not stated"
ANNEX_IV = {
    "general": "1. General description",
    "development": "2. Elements and development process",
    "monitoring": "3. Monitoring, functioning and control",
    "metrics": "4. Performance metrics",
    "risks": "5. Risks and limits",
    "changes": "6. Changes through the lifecycle",
    "standards": "7. Standards applied",
    "declaration": "8. Declaration of conformity",
    "after": "9. Monitoring after release",
}
LEFT_TO_PEOPLE = {
    "standards": "Not stated. Which standards were applied is for whoever provides the system to "
    "say; nothing here was measured against one.",
    "declaration": "None. This file declares nothing: it lists what was recorded and measured.",
    "after": "Not stated by the run. labelwise can count and check: `labelwise count` (how "
    "many, with an interval), `labelwise audit` (were guarantees kept), the trust view "
    "of `labelwise serve` (does calibration still hold).",
}
DISCLAIMER = (
    "The headings are those of Annex IV of Regulation (EU) 2024/1689 and of a model card. "
    "This is a record of facts and measurements and no legal statement: whether a duty exists, or "
    "is met, is not for this program to say."
)


@dataclass(frozen=True)
class Dossier:
    """What is known about a run, as plain data; the evaluation holds all figures."""

    title: str
    intended_use: str
    model: Mapping[str, str]
    data: Mapping[str, str]
    splits: Sequence[Mapping[str, str]]
    training: Mapping[str, str]
    promises: Sequence[str]
    receipts: Sequence[str]
    limits: Sequence[str]
    versions: Mapping[str, str]
    hashes: Mapping[str, str]
    history: Sequence[str]
    evaluation: Evaluation

    def spec(self) -> dict[str, Any]:
        """Return everything as plain data, under the headings."""
        own = asdict(self)
        evaluation = json.loads(self.evaluation.to_json())
        return {
            "title": self.title,
            "disclaimer": DISCLAIMER,
            ANNEX_IV["general"]: {"intended use": self.intended_use, "model": own["model"]},
            ANNEX_IV["development"]: {
                "data": own["data"],
                "splits": own["splits"],
                "training": own["training"],
                "versions": own["versions"],
                "hashes": own["hashes"],
            },
            ANNEX_IV["monitoring"]: {"promises": own["promises"], "receipts": own["receipts"]},
            ANNEX_IV["metrics"]: evaluation,
            ANNEX_IV["risks"]: own["limits"],
            ANNEX_IV["changes"]: own["history"],
            **{ANNEX_IV[name]: text for name, text in LEFT_TO_PEOPLE.items()},
        }


def write_dossier(dossier: Dossier, folder: Path) -> None:
    """Write ``dossier.html`` and ``dossier.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "dossier.html") as temporary:
        temporary.write_text(dossier_page(dossier), encoding="utf-8")
    with replacing(folder / "dossier.json") as temporary:
        text = json.dumps(dossier.spec(), indent=2, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def dossier_page(dossier: Dossier) -> str:
    """Return the page as text."""
    evaluation = dossier.evaluation
    parts = {
        "general": join(
            tag("h3", "Intended use"),
            paragraph(dossier.intended_use),
            tag("h3", "Model"),
            _list(dossier.model),
        ),
        "development": join(
            tag("h3", "Data"),
            _list(dossier.data),
            _splits(dossier.splits),
            tag("h3", "Training"),
            _list(dossier.training),
            tag("h3", "Versions"),
            _list(dossier.versions),
            tag("h3", "Hashes"),
            table(
                ["file", "SHA-256"],
                list(dossier.hashes.items()),
                caption="The files that make the run.",
                wide=True,
            ),
        ),
        "monitoring": join(
            tag("h3", "Promises"),
            _bullets(dossier.promises, "No promise was made."),
            tag("h3", "Receipts"),
            _bullets(dossier.receipts, "No index was given, so no list's receipt is shown."),
        ),
        "metrics": join(
            paragraph(facts(evaluation)),
            glance(evaluation, {}),
            tag("h3", "By subgroup"),
            *(
                subgroup_tables(evaluation)
                or [
                    paragraph(
                        "No subgroup was named: how the model treats different sites, cameras or "
                        "groups of people is not known.",
                        class_="note",
                    )
                ]
            ),
            calibration(evaluation),
            labels(evaluation),
            curves(evaluation),
            how(evaluation),
        ),
        "risks": _bullets(dossier.limits, "None was found."),
        "changes": _bullets(dossier.history, "Nothing was recorded."),
        **{name: paragraph(text) for name, text in LEFT_TO_PEOPLE.items()},
    }
    return document(
        dossier.title,
        DISCLAIMER,
        [
            (name, ANNEX_IV[name], section(name, ANNEX_IV[name], part))
            for name, part in parts.items()
        ],
    )


def _list(facts_of: Mapping[str, str]) -> Markup:
    if not facts_of:
        return paragraph(NOT_STATED.capitalize() + ".")
    entries = [
        tag("div", tag("dt", name), tag("dd", text or NOT_STATED))
        for name, text in facts_of.items()
    ]
    return tag("dl", *entries, class_="origin")


def _splits(rows: Sequence[Mapping[str, str]]) -> Markup | None:
    if not rows:
        return None
    head = list(rows[0])
    return table(
        head,
        [[row[name] for name in head] for row in rows],
        caption="The run's splits: training fits weights; validation, link and rule; test nothing.",
        wide=True,
        pinned=True,
    )


def _bullets(sentences: Sequence[str], otherwise: str) -> Markup:
    if not sentences:
        return paragraph(otherwise)
    return tag("ul", *(tag("li", sentence) for sentence in sentences))

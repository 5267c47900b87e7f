"""DCLR beside cross-entropy and label smoothing, all with its head, by the survey's protocol.

    python benchmarks/survey_dclr.py FOLDER scene=scene.npz emotions=emotions.npz --seeds 10

Writes SET.full.json into FOLDER; `python benchmarks/survey.py` shows them on evidence/survey.md.
DCLR needs features of each label, so it is no row of the survey's linear heads.
"""

import argparse
import warnings
from pathlib import Path

import torch

from labelwise.learn.heads import LabelFeatures
from labelwise.learn.methods import HEADS, METHODS, Method
from labelwise.learn.objectives import BCE, DynamicCorrelations, SmoothedBCE
from labelwise.papers.survey import SurveyCell, SurveyPlan, _opened, rows_of, survey_method

SIZES = {"num_images": "num_images", "num_labels": "num_labels"}
OURS = {
    "bce, label features": Method(BCE, "proper", "", "", "features"),
    "bce-ls, label features": Method(SmoothedBCE, "improper", "", "", "features"),
    "dclr": Method(DynamicCorrelations, "improper", "", "", "features", from_facts=SIZES),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("sets", nargs="+", metavar="SET=FILE")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # of labels ranked no better than chance
    HEADS["features"] = LabelFeatures
    METHODS.update(OURS)
    for name, _, file in (text.partition("=") for text in options.sets):
        command = f"python benchmarks/survey_dclr.py FOLDER {name}={Path(file).name}"
        plan = SurveyPlan(seeds=options.seeds, command=f"{command} --seeds {options.seeds}")
        rows = rows_of(name, f"features:{file}", plan)
        cell: SurveyCell = _opened(options.folder, name, "full", plan, rows)
        for method in [one for one in OURS if one not in cell.methods]:
            cell.methods[method] = survey_method(method, "full", rows, plan)
            cell.save(options.folder)
            print(name, method, cell.methods[method].rate, flush=True)


if __name__ == "__main__":
    main()

"""A million detections of BirdNET's layout, read, calibrated, decided and counted by site.

    OMP_NUM_THREADS=2 python benchmarks/detections.py --rows 1000000

Made data: 100 species, 50 sites, 20,000 recordings, 100 checked detections per species. The goal
is at most 10 s on two cores for reading, calibrating all and counting by site and species.
Processor time is that of all threads together, whatever else the machine does.
"""

import argparse
import csv
import tempfile
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelwise.calibration import fit_calibrator
from labelwise.scores import read_scores
from labelwise.scores.calls import calls_of_table


def make(path: Path, rows: int, species: int = 100, sites: int = 50) -> None:
    rng = np.random.default_rng(0)
    label = rng.zipf(1.5, rows) % species
    recording = np.sort(rng.integers(0, 20_000, rows))
    odds = rng.normal(size=rows)
    slope, offset = np.exp(0.3 * rng.normal(size=species)), rng.normal(size=species)
    truth = rng.random(rows) < expit(slope[label] * odds + offset[label])
    checked = np.zeros(rows, bool)
    for k in range(species):
        own = np.flatnonzero(label == k)
        checked[rng.choice(own, min(100, len(own)), replace=False)] = True
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        head = ["Start (s)", "End (s)", "Scientific name", "Common name", "Confidence", "File"]
        table.writerow([*head, "site", "correct"])
        table.writerows(
            [
                3.0 * row,
                3.0 * row + 3,
                f"Genus species{k}",
                f"Bird {k}",
                round(p, 4),
                f"site{r % sites}/rec{r}.wav",
                f"site{r % sites}",
                int(y) if c else "",
            ]
            for row, (k, p, r, y, c) in enumerate(
                zip(label, expit(odds), recording, truth, checked, strict=True)
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "birdnet.csv"
        make(path, rows)
        moments = [_now()]
        table = read_scores(path, None)
        own = table.predictions
        moments.append(_now())
        link, *_ = fit_calibrator("platt", own.logits, own.labels, own.link, own.observed)
        assert table.detections is not None
        table.detections.by_label(link)
        moments.append(_now())
        found = calls_of_table(path, "site", None, None, "calibrated", None)
        moments.append(_now())
    print(f"{rows:,} detections, {len(own):,} checked clips, {len(found.counts):,} cells")
    for what, before, after in (
        ("read and checked", moments[0], moments[1]),
        ("calibrated, all rows", moments[1], moments[2]),
        ("read again and counted", moments[2], moments[3]),
        ("together", moments[0], moments[3]),
    ):
        clock, processor = after - before
        goal = "   goal 10" if what == "together" else ""
        print(f"{what:24} {processor:6.2f} s of processors, {clock:6.2f} s by the clock{goal}")


def _now() -> NDArray[np.float64]:
    """Return the clock, and the processor time of all threads."""
    return np.array([perf_counter(), process_time()])


if __name__ == "__main__":
    main()

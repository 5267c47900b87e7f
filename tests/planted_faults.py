"""Plant one hundred known faults, one at a time, and count how many the tests catch.

    python tests/planted_faults.py --jobs 15 -o planted.json

Each fault is a patch anchored on text: ``old`` must be in its file exactly once. If it is not, the
fault is lost, which fails too. It is of a kind that was once found in this project: a sign, an
axis, an unknown label read as absent, rows of two splits mixed, a wrong unit in a sentence, the
wrong side of a bound, a rank that is off by one, a swapped comparison, a missing division.

A fault is planted in a copy of the tree, where the tests of its room and of its callers run until
one fails, for at most two minutes. Tests that fail without any fault are left out, and so are
files that cannot be read: a fault without any other tests is not judged. The command fails where
less than 95 % are caught.
"""

import argparse
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "src/labelwise"
NOT_COPIED = (".git", ".venv*", ".*_cache", ".carry", "__pycache__", "runs", "site", "dist")
SECONDS = 120
GOAL = 0.95
ENDINGS = {0: "passed", 1: "failed", 2: "failed"}  # 2: a file that cannot be collected

TESTS = {  # of a file: its room's and its callers'
    "links.py": "calibration/test_fitted_links learn/test_losses learn/test_softmax test_taxonomy",
    "metrics/ranking.py": "metrics/test_metrics_ranking",
    "metrics/sets.py": "metrics/test_metrics_ranking",
    "metrics/calibration.py": "metrics/test_metrics_calibration",
    "metrics/scoring.py": "metrics/test_metrics_scoring",
    "metrics/intervals.py": "metrics/test_metrics_scoring",
    "metrics/score_counts.py": "metrics/test_metrics_ranking evaluation/test_evaluate",
    "metrics/shift.py": "metrics/test_shift",
    "base/bounds.py": "base/test_bounds decide/test_promises decide/test_rules",
    "base/groups.py": "base/test_bounds evaluation/test_verdict decide/test_promises",
    "base/newton.py": "base/test_newton eyes/test_fit",
    "base/convex.py": "base/test_newton eyes/test_fit",
    "calibration/auto.py": "scores/test_fit_and_judge calibration/test_fitted_links "
    "calibration/test_calibrator_refusals",
    "calibration/entries.py": "calibration/test_regression",
    "calibration/regression.py": "calibration/test_regression calibration/test_few "
    "calibration/test_fitted_links",
    "calibration/isotonic.py": "calibration/test_regression calibration/test_fitted_links",
    "calibration/shrunken.py": "eyes/test_fit calibration/test_few scores/test_fit_and_judge",
    "calibration/few.py": "calibration/test_few",
    "decide/rules.py": "decide/test_rules",
    "decide/thresholds.py": "decide/test_rules",
    "decide/promises.py": "decide/test_promises decide/test_list_guarantees",
    "decide/estimate.py": "decide/test_list_guarantees photos/test_estimating",
    "decide/audits.py": "decide/test_audits answers/test_audit_session",
    "evaluation/verdict.py": "evaluation/test_verdict",
    "evaluation/judge.py": "evaluation/test_verdict",
    "evaluation/intervals.py": "evaluation/test_verdict evaluation/test_evaluate "
    "papers/test_experiments",
    "eyes/fit.py": "eyes/test_fit",
    "learn/objectives/base.py": "learn/test_softmax learn/test_losses",
    "learn/objectives/terms.py": "learn/test_softmax",
    "learn/objectives/missing_labels.py": "learn/test_losses",
    "learn/objectives/role.py": "learn/test_ranking_losses",
    "learn/objectives/ranking.py": "learn/test_ranking_losses",
    "learn/objectives/cross_entropy.py": "learn/test_losses learn/test_softmax",
    "learn/objectives/softmax.py": "learn/test_softmax learn/test_ranking_losses",
    "learn/objectives/quasibinary.py": "learn/test_losses",
    "queries/quality.py": "queries/test_query_language",
    "answers/suspects.py": "answers/test_asking",
    "scores/aggregating.py": "scores/test_read_scores",
    "papers/comparison.py": "papers/test_statistics papers/test_experiments",
    "papers/measures.py": "papers/test_survey papers/test_experiments",
}


class Fault(NamedTuple):
    """What is in a file of the package, and what stands there when the fault is planted."""

    kind: str
    file: str
    old: str
    new: str

    @property
    def path(self) -> Path:
        return Path(PACKAGE, self.file)

    @property
    def tests(self) -> tuple[str, ...]:
        return tuple(f"tests/{name}.py" for name in TESTS[self.file].split())


FAULTS = [
    Fault(*fault)
    for fault in (
        # Signs.
        ("sign", "links.py", "rise = softplus(-absent.k *", "rise = softplus(absent.k *"),
        (
            "sign",
            "links.py",
            "return -softplus(-odds), -softplus(odds)",
            "return -softplus(odds), -softplus(-odds)",
        ),
        (
            "sign",
            "links.py",
            "return logits - like(self.log_weights, logits)",
            "return logits + like(self.log_weights, logits)",
        ),
        (
            "sign",
            "links.py",
            "log_p = (logits - self._known(logits)).clip(max=0)",
            "log_p = (logits + self._known(logits)).clip(max=0)",
        ),
        (
            "sign",
            "base/newton.py",
            "like(solution[-1], self.mean) - self.mean @ weight",
            "like(solution[-1], self.mean) + self.mean @ weight",
        ),
        (
            "sign",
            "calibration/regression.py",
            "z = like(self.slope, u) * u + like(self.offset, u)",
            "z = like(self.slope, u) * u - like(self.offset, u)",
        ),
        (
            "sign",
            "calibration/regression.py",
            "like(self.a, u) * rise - like(self.b, u) * fall",
            "like(self.a, u) * rise + like(self.b, u) * fall",
        ),
        (
            "sign",
            "calibration/regression.py",
            "offset = theta[:, -1:] - (slopes * self.mean)",
            "offset = theta[:, -1:] + (slopes * self.mean)",
        ),
        (
            "sign",
            "metrics/calibration.py",
            "_ratio(self.present_sums - self.confidence_sums, self.counts)",
            "_ratio(self.confidence_sums - self.present_sums, self.counts)",
        ),
        ("sign", "metrics/intervals.py", "(y - p) * (1 - 2 * p)", "(p - y) * (1 - 2 * p)"),
        ("sign", "metrics/shift.py", "float(offset - shift)", "float(offset + shift)"),
        (
            "sign",
            "decide/audits.py",
            "np.clip(good - bad, -MOST_ODDS",
            "np.clip(bad - good, -MOST_ODDS",
        ),
        (
            "sign",
            "learn/objectives/cross_entropy.py",
            "return labels * _focal(logits - margin, gamma) + (1 - labels) * (lam",
            "return labels * _focal(logits + margin, gamma) + (1 - labels) * (lam",
        ),
        (
            "sign",
            "learn/objectives/softmax.py",
            ".sum(dim=1) / count - count.log()",
            ".sum(dim=1) / count + count.log()",
        ),
        (
            "sign",
            "papers/comparison.py",
            "other[second] - 2 * first_row[second]",
            "other[second] + 2 * first_row[second]",
        ),
        # Axes, and rows for columns.
        (
            "axis",
            "metrics/sets.py",
            'axis = 0 if by == "label" else 1\n',
            'axis = 1 if by == "label" else 0\n',
        ),
        (
            "axis",
            "metrics/scoring.py",
            "self.totals / self.cells.counts.sum(axis=1)",
            "self.totals / self.cells.counts.sum()",
        ),
        (
            "axis",
            "decide/thresholds.py",
            "count = max(1, round(k * images))",
            "count = max(1, round(k * labels))",
        ),
        (
            "axis",
            "learn/objectives/missing_labels.py",
            "return labels * present + (1 - labels) / max(labels.shape[1] - 1, 1)",
            "return labels * present + (1 - labels) / max(labels.shape[0] - 1, 1)",
        ),
        (
            "axis",
            "learn/objectives/missing_labels.py",
            "return torch.sigmoid(logits).sum(dim=1).mean()",
            "return torch.sigmoid(logits).sum(dim=0).mean()",
        ),
        (
            "axis",
            "learn/objectives/ranking.py",
            '"sample": (1,), "class": (0,)',
            '"sample": (0,), "class": (1,)',
        ),
        (
            "axis",
            "links.py",
            "return self.log_probs(logits)[1][..., self.tree.tops].sum(-1)",
            "return self.log_probs(logits)[1].sum(-1)",
        ),
        (
            "axis",
            "calibration/regression.py",
            "np.asarray((sides == 0).any(0))",
            "np.asarray((sides == 0).all(0))",
        ),
        # Unknown labels read as absent, unsure answers as no.
        (
            "unknown",
            "metrics/sets.py",
            "absent = ~present if mask is None else ~present & mask",
            "absent = ~present",
        ),
        (
            "unknown",
            "metrics/sets.py",
            "~present.any(axis=1) & (True if mask is None else mask.all(axis=1))",
            "~present.any(axis=1)",
        ),
        ("unknown", "metrics/scoring.py", "loss = np.where(keep, loss, 0.0)", "loss = loss + 0.0"),
        (
            "unknown",
            "base/convex.py",
            "xp.where(observed, labels, 0.0), xp.where(observed, 1 - labels, 0.0)",
            "xp.where(observed, labels, 0.0), xp.where(observed, 1 - labels, 1.0)",
        ),
        (
            "unknown",
            "calibration/entries.py",
            "np.where(seen, y, zero), seen.astype(u.dtype)",
            "np.where(seen, y, zero), np.ones_like(u)",
        ),
        (
            "unknown",
            "calibration/regression.py",
            "present = (present & seen)[seen.any(axis=1)]",
            "present = present & seen",
        ),
        (
            "unknown",
            "calibration/regression.py",
            "possible = np.where(some, present, ~seen)",
            "possible = np.where(some, present, True)",
        ),
        ("unknown", "decide/promises.py", "(sets & answers.known).sum(1)", "sets.sum(1)"),
        ("unknown", "decide/estimate.py", "nan=unsure_as)", "nan=0.0)"),
        (
            "unknown",
            "decide/audits.py",
            "max(low - unsure / uses, least / uses)",
            "max(low, least / uses)",
        ),
        (
            "unknown",
            "evaluation/judge.py",
            "known = weights @ seen.astype(np.float32)",
            "known = np.array(known)",
        ),
        (
            "unknown",
            "learn/objectives/terms.py",
            "absent = torch.where(targets.observed, absent, 0.0)",
            "absent = absent + 0.0",
        ),
        (
            "unknown",
            "learn/objectives/missing_labels.py",
            "largest_unknown(loss.detach(), ~targets.observed, count)",
            "largest_unknown(loss.detach(), targets.observed, count)",
        ),
        (
            "unknown",
            "learn/objectives/softmax.py",
            "outside = ~inside if reviewed is None else ~inside & reviewed",
            "outside = ~inside",
        ),
        (
            "unknown",
            "queries/quality.py",
            "costs, fits = costs[known], (np.cumsum(known) - 1)[fits]",
            "costs, fits = costs + 0, fits",
        ),
        (
            "unknown",
            "scores/aggregating.py",
            "yes, no = present > 0, absent == photos",
            "yes, no = present > 0, present == 0",
        ),
        # Rows of two splits, or of one group, mixed.
        (
            "split",
            "calibration/auto.py",
            "train, test = part(fold != number), part(fold == number)",
            "train, test = part(fold >= 0), part(fold == number)",
        ),
        (
            "split",
            "calibration/auto.py",
            "fold = folds_of(count, folds, seed)[member]",
            "fold = folds_of(len(scores), folds, seed)",
        ),
        (
            "split",
            "calibration/isotonic.py",
            "_losses(some.subset(fold != out), some.subset(fold == out))",
            "_losses(some.subset(fold >= 0), some.subset(fold == out))",
        ),
        (
            "split",
            "base/groups.py",
            "np.isin(self.codes, np.random.default_rng(seed).permutation(self.count)[:cut])",
            "np.random.default_rng(seed).permutation(len(self)) * self.count < cut * len(self)",
        ),
        (
            "split",
            "eyes/fit.py",
            "(self.folds != number) | (number < 0)",
            "(self.folds >= 0) | (number < 0)",
        ),
        ("split", "eyes/fit.py", "count, groups=groups, seed=seed)", "count, seed=seed)"),
        (
            "split",
            "answers/suspects.py",
            "platt(scores[~held], truth[~held], link, None if known is None else known[~held])",
            "platt(scores, truth, link, known)",
        ),
        (
            "split",
            "answers/suspects.py",
            "seen = [part[~held] for part in (odds, others, truth, weight)]",
            "seen = [odds, others, truth, weight]",
        ),
        (
            "split",
            "papers/measures.py",
            "for x in (half == side, half != side))",
            "for x in (half == side, half == side))",
        ),
        (
            "split",
            "calibration/entries.py",
            "losses([*parts[:number], *parts[number + 1 :]], fold)",
            "losses([*parts], fold)",
        ),
        # Wrong units, and fractions for percent, in what people read.
        (
            "unit",
            "decide/promises.py",
            "wrong, listed = percent(1 - self.level), counted",
            "wrong, listed = percent(self.level), counted",
        ),
        ("unit", "decide/promises.py", 'return f"{100 * share:.3g}%"', 'return f"{share:.3g}%"'),
        (
            "unit",
            "decide/promises.py",
            'those = f"at least {100 * self.level:.3g} %',
            'those = f"at least {self.level:.3g} %',
        ),
        (
            "unit",
            "decide/estimate.py",
            "match {what} ({self.confidence:.0%} interval: ",
            "match {what} ({self.confidence:.0f} % interval: ",
        ),
        (
            "unit",
            "decide/estimate.py",
            'return f"{100 * share:.2g}" if share < 0.995',
            'return f"{share:.2g}" if share < 0.995',
        ),
        ("unit", "decide/audits.py", "self.tags - len(self.kept)\n", "len(self.kept)\n"),
        (
            "unit",
            "evaluation/verdict.py",
            "judged.right / max(judged.present, 1)",
            "judged.right / max(judged.tags, 1)",
        ),
        (
            "unit",
            "evaluation/verdict.py",
            'return f"{100 * share:.1f} points"',
            'return f"{share:.1f} points"',
        ),
        ("unit", "calibration/shrunken.py", "round(100 * self.rate)", "round(self.rate)"),
        ("unit", "answers/suspects.py", '{level} with {sure}"', '{sure} with {level}"'),
        (
            "unit",
            "metrics/scoring.py",
            "return np.log(exact), np.log1p(-exact)",
            "return np.log2(exact), np.log2(1 - exact)",
        ),
        # The wrong side, or the wrong level, of a bound.
        (
            "bound",
            "base/bounds.py",
            "betaincinv(hits + 1, count - hits, confidence)",
            "betaincinv(hits, count - hits + 1, confidence)",
        ),
        ("bound", "base/bounds.py", "z, share = 1.959964,", "z, share = 1.644854,"),
        (
            "bound",
            "base/bounds.py",
            "mean = np.minimum(np.asarray(means, dtype=np.float64), level)",
            "mean = np.asarray(means, dtype=np.float64)",
        ),
        (
            "bound",
            "metrics/intervals.py",
            "2 * value - np.nanquantile(np.concatenate(values), [1 - tail, tail])",
            "np.nanquantile(np.concatenate(values), [tail, 1 - tail])",
        ),
        (
            "bound",
            "calibration/few.py",
            "reach = ndtri((1 + confidence) / 2)",
            "reach = ndtri(confidence)",
        ),
        (
            "bound",
            "calibration/few.py",
            "reach = 1.645 * np.sqrt(variance)",
            "reach = 1.282 * np.sqrt(variance)",
        ),
        (
            "bound",
            "decide/promises.py",
            "if len(losses) and low >= promise.level:",
            "if len(losses) and high >= promise.level:",
        ),
        (
            "bound",
            "decide/promises.py",
            "elif len(losses) and high < promise.level:",
            "elif len(losses) and value < promise.level:",
        ),
        (
            "bound",
            "decide/estimate.py",
            "alpha = (1 - confidence) / 2\n",
            "alpha = 1 - confidence\n",
        ),
        (
            "bound",
            "decide/thresholds.py",
            "shown = means[best] - sqrt(",
            "shown = means[best] + sqrt(",
        ),
        ("bound", "papers/comparison.py", "p_values[pair] > 0.05 / left", "p_values[pair] > 0.05"),
        ("bound", "metrics/shift.py", "labels / ALPHA)", "1 / ALPHA)"),
        # Off by one, mostly in ranks and counts.
        (
            "rank",
            "metrics/ranking.py",
            "return (rank_among + 1) / (rank + 1)",
            "return rank_among / (rank + 1)",
        ),
        (
            "rank",
            "metrics/ranking.py",
            "depth[some] = lines.count(positives, AT_LEAST)[0][lowest]",
            "depth[some] = lines.count(positives, ABOVE)[0][lowest]",
        ),
        (
            "rank",
            "metrics/ranking.py",
            "negatives[positives.line] - (as_high + higher) / 2",
            "negatives[positives.line] - as_high",
        ),
        (
            "rank",
            "metrics/calibration.py",
            "np.arange(1, bins) // bins) - 1",
            "np.arange(1, bins) // bins)",
        ),
        (
            "rank",
            "metrics/score_counts.py",
            "ceil(recall * total - 1e-9)",
            "ceil(recall * total + 1e-9)",
        ),
        (
            "rank",
            "base/bounds.py",
            "np.add(losses, 1.0), 1 - level)",
            "np.add(losses, 2.0), 1 - level)",
        ),
        (
            "rank",
            "decide/thresholds.py",
            "budget = level * (count + 1) - 1\n",
            "budget = level * count\n",
        ),
        (
            "rank",
            "decide/promises.py",
            "(promise.listed or 0) + TOLERANCE)",
            "(promise.listed or 0) + 0.5)",
        ),
        (
            "rank",
            "learn/objectives/ranking.py",
            "return others // trials",
            "return others // (trials + 1)",
        ),
        (
            "rank",
            "learn/objectives/softmax.py",
            "topk(k + 1, dim=1).values[:, k].mean",
            "topk(k + 1, dim=1).values[:, k - 1].mean",
        ),
        (
            "rank",
            "learn/objectives/softmax.py",
            "round((k - 1) * proposal.shape[0])",
            "round(k * proposal.shape[0])",
        ),
        ("rank", "scores/aggregating.py", "least = count // 2 + 1", "least = (count + 1) // 2"),
        # Comparisons the wrong way round, and sides exchanged.
        ("comparison", "decide/rules.py", "return probs >= value", "return probs > value"),
        (
            "comparison",
            "metrics/sets.py",
            "(counts >= few).astype(np.intp)",
            "(counts > few).astype(np.intp)",
        ),
        (
            "comparison",
            "metrics/calibration.py",
            "np.where(self.counts >= min_count,",
            "np.where(self.counts > min_count,",
        ),
        (
            "comparison",
            "calibration/auto.py",
            "kept.behind <= kept.standard_error",
            "kept.behind >= kept.standard_error",
        ),
        (
            "comparison",
            "decide/thresholds.py",
            "_first(at.found >= precision *",
            "_last(at.found >= precision *",
        ),
        (
            "comparison",
            "evaluation/verdict.py",
            "if trust.slope < 1 else",
            "if trust.slope > 1 else",
        ),
        (
            "comparison",
            "answers/suspects.py",
            '"yes" if self.given == "absent" else "no")',
            '"no" if self.given == "absent" else "yes")',
        ),
        (
            "comparison",
            "metrics/score_counts.py",
            "dropped = max(self.dropped, other.dropped)",
            "dropped = min(self.dropped, other.dropped)",
        ),
        (
            "comparison",
            "learn/objectives/cross_entropy.py",
            "weight(logsigmoid(-logits), focusing.gamma_pos)",
            "weight(logsigmoid(-logits), focusing.gamma_neg)",
        ),
        # A division, a weight or a correction that is missing.
        (
            "norm",
            "learn/objectives/terms.py",
            "(labels * (labels - 1)).clamp(min=1)",
            "(labels * labels).clamp(min=1)",
        ),
        (
            "norm",
            "learn/objectives/ranking.py",
            "low = temperature_pos * masked_logsumexp(",
            "low = masked_logsumexp(",
        ),
        (
            "norm",
            "learn/objectives/role.py",
            "root = (v / (1 - BETA_2**step)).sqrt()",
            "root = v.sqrt()",
        ),
        (
            "norm",
            "learn/objectives/base.py",
            "observed.to(values.dtype).sum().clamp(min=1)",
            "values.numel()",
        ),
        (
            "norm",
            "base/groups.py",
            "(self.sums(moved) / (1 - parts / count))[parts > 0]",
            "self.sums(moved)[parts > 0]",
        ),
        (
            "norm",
            "evaluation/intervals.py",
            "(sums - sums.sum() / total * counts) / total",
            "(sums - sums.sum() / len(sums)) / total",
        ),
        (
            "norm",
            "decide/estimate.py",
            "scale = weights**2 * left / sizes",
            "scale = weights * left / sizes",
        ),
    )
]


def check_anchors() -> list[Fault]:
    """Return the faults whose old text is not in its file exactly once, or whose tests are gone."""
    return [
        fault
        for fault in FAULTS
        if (ROOT / fault.path).read_text("utf-8").count(fault.old) != 1
        or not all((ROOT / test).is_file() for test in fault.tests)
    ]


class Copies:
    """Copies of the tree, one for each run at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self.free: queue.Queue[Path] = queue.Queue()
        for number in range(count):
            copy = folder / str(number)
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
            self.free.put(copy)

    def run(self, options: Sequence[str], fault: Fault | None = None) -> tuple[str, str, float]:
        """Return how pytest ended ("passed", "failed", "slow", "broken"), its text, the seconds."""
        copy = self.free.get()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        environment = {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"OMP_NUM_THREADS": "1", "BROWSER": "no"}
        file = None if fault is None else copy / fault.path
        before = "" if file is None else file.read_text("utf-8")
        begun = time.monotonic()
        try:
            if file is not None and fault is not None:
                file.write_text(before.replace(fault.old, fault.new), "utf-8")
            with subprocess.Popen(
                command,
                cwd=copy,
                env={**os.environ, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            ) as process:
                try:
                    text, _ = process.communicate(timeout=SECONDS)
                    ended = ENDINGS.get(process.returncode, "broken")
                except subprocess.TimeoutExpired:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    text, ended = process.communicate()[0], "slow"
        finally:
            if file is not None:
                file.write_text(before, "utf-8")
            self.free.put(copy)
        return ended, text, time.monotonic() - begun


def failures(text: str) -> list[str]:
    """Return the tests, or the files that could not be collected, that a run of pytest names."""
    return re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)


def judge(copies: Copies, fault: Fault, unsound: Sequence[str]) -> dict[str, object]:
    """Return the record of a fault; caught, if a test failed that does not fail without it."""
    left_out = [option for test in unsound for option in ("--deselect", test)]
    files = [file for file in fault.tests if file not in unsound]  # a file that cannot be read
    if not files:
        return {"state": "not judged", **fault._asdict()}
    ended, text, seconds = copies.run(["-x", *left_out, *files], fault)
    caught_by = failures(text)[:1]
    state = {"passed": "survived", "failed": "caught" if caught_by else "broken"}.get(ended, ended)
    record = {"state": state, "by": caught_by, "seconds": round(seconds, 1), **fault._asdict()}
    return record if state != "broken" else {**record, "text": text[-2000:]}


def main() -> None:
    parser = argparse.ArgumentParser(description="How many of one hundred known faults are caught.")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; a copy of the tree each")
    parser.add_argument("--check", action="store_true", help="only look for the anchors")
    parser.add_argument("--only", default="", help="faults whose file or kind has this in it")
    parser.add_argument("-o", "--out", type=Path, help="a JSON file for all records")
    options = parser.parse_args()
    lost = check_anchors()
    for fault in lost:
        print(f"lost: {fault.path} no longer has, exactly once: {fault.old!r}", file=sys.stderr)
    if options.check:
        sys.exit(bool(lost))
    chosen = [f for f in FAULTS if f not in lost and options.only in f"{f.kind} {f.file}"]
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copies = Copies(Path(folder), options.jobs)
        suites = sorted({fault.tests for fault in chosen})
        with ThreadPoolExecutor(options.jobs) as pool:
            sound = dict(zip(suites, pool.map(copies.run, suites), strict=True))
            unsound = {
                suite: list(suite) if ended == "broken" else failures(text)
                for suite, (ended, text, _) in sound.items()
            }
            judged = [pool.submit(judge, copies, f, unsound[f.tests]) for f in chosen]
            records = []
            for done in judged:
                records.append(done.result())
                print(json.dumps(records[-1]), flush=True)
    caught = sum(record["state"] == "caught" for record in records)
    report = {
        "faults": len(FAULTS),
        "caught": caught,
        "lost": [fault._asdict() for fault in lost],
        "left out": {" ".join(suite): tests for suite, tests in unsound.items() if tests},
        "slow": [" ".join(suite) for suite, (ended, _, _) in sound.items() if ended == "slow"],
        "records": records,
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(f"{caught} of {len(chosen)} faults caught, {len(lost)} anchors lost")
    sys.exit(bool(lost) or caught < GOAL * len(chosen))


if __name__ == "__main__":
    main()

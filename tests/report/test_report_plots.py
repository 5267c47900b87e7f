"""The charts on matplotlib axes show the evaluation's own numbers."""

from dataclasses import replace

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from PIL import Image
from sample_scores import Halved, sample

from labelwise.decide import Threshold
from labelwise.evaluation import RetrievalPoint, evaluate
from labelwise.links import Sigmoid
from labelwise.report import plots

mpl.use("Agg")


@pytest.fixture(scope="module")
def evaluation():
    return evaluate(sample(), Sigmoid(), Threshold(0.5), calibrated=Halved())


def test_reliability_draws_the_curves(evaluation):
    axes = Figure().subplots()
    plots.reliability(axes, evaluation)
    lines = {line.get_label(): line for line in axes.get_lines()}
    after = next(line for name, line in lines.items() if name.startswith("after"))
    confidences = [c for c in evaluation.after.pooled.confidence if c is not None]
    assert list(after.get_xdata()) == confidences
    alone = Figure().subplots()
    plots.reliability(alone, replace(evaluation, after=None))
    assert alone.get_lines()[-1].get_label().startswith("as given")


def test_axes_have_no_negative_share_and_no_part_of_a_label(evaluation):
    axes = Figure().subplots()
    plots.zero_label(axes, evaluation)
    axes.figure.canvas.draw()
    assert min(axes.get_yticks()) < 0
    assert all(float(text.get_text()) >= 0 for text in axes.get_yticklabels())
    axes = Figure().subplots()
    plots.set_sizes(axes, evaluation)
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_every_chart_is_written_as_png_and_svg(evaluation, tmp_path):
    written = plots.save_charts(evaluation, tmp_path / "charts")
    names = {path.name for path in written}
    assert {"reliability.png", "reliability.svg", "zero-label.png", "set-sizes.svg"} <= names
    assert {path.name for path in (tmp_path / "charts").iterdir()} == names
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as picture:
                assert picture.width > 500


def test_what_does_not_apply_is_refused_by_name(tmp_path):
    ranks = evaluate(sample(), None)
    axes = Figure().subplots()
    assert plots.save_charts(ranks, tmp_path) == []
    for draw, words in (
        (plots.reliability, "ranks only"),
        (plots.set_sizes, "a rule"),
        (plots.zero_label, "without labels"),
        (plots.retrieval, "query lengths"),
    ):
        with pytest.raises(ValueError, match=words):
            draw(axes, ranks)


def test_retrieval_is_drawn_with_its_errors(evaluation):
    points = (RetrievalPoint(1, 0.9, None, 5, 0, False), RetrievalPoint(2, 0.8, 0.01, 40, 1, True))
    axes = Figure().subplots()
    plots.retrieval(axes, replace(evaluation, retrieval=points))
    assert list(axes.get_lines()[0].get_ydata()) == [0.9, 0.8]

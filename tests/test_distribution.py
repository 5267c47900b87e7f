"""The wheel and the sdist are whole; a user's mypy --strict, the judge, sees the wheel's types."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import distribution
import pytest

ROOT = Path(__file__).parent.parent
USER = """
import labelwise
from labelwise.calibration import platt
from labelwise.decide import Threshold, best_f
from labelwise.links import Link, Sigmoid
from labelwise.metrics import average_precision
from labelwise.learn.objectives import SPA
from torch import Tensor


def thresholds(logits: Tensor, labels: Tensor) -> Threshold:
    link: Link = platt(logits, labels, SPA().link)
    print(average_precision(logits, labels).value + 1.0)
    return best_f(link(logits), labels, beta=2.0)


def trained(table: labelwise.LabelTable) -> labelwise.RunFolder:
    return labelwise.train(table, method="bce", epochs=3)


def labels_of(folder: str) -> list[tuple[str, ...]]:
    return labelwise.load_run(folder).model().predict(["a.jpg", "b.jpg"]).labels


def regularised() -> labelwise.Objective:
    return SPA() + 0.5 * labelwise.LabelPairs()
"""
WRONG = """
scale: str = platt(Tensor(), Tensor(), Sigmoid())
best_f(Tensor(), Tensor(), scope="lable")
SPA(3)
labelwise.load_run(3)
labelwise.nonsense
"""

# Parts of torch, and packages, that no type used here names: mypy would take two thirds of its
# time for them.
NOT_NAMED = """_decomp _dynamo _export _functorch _higher_order_ops _inductor _library _logging
_prims _prims_common _refs _subclasses ao backends cuda distributed distributions export fx jit
masked mtia multiprocessing nested onnx optim package profiler quantization sparse testing utils
xpu"""
PACKAGES_NOT_NAMED = "fastapi markdown_it matplotlib pydantic pydantic_core rich starlette sympy"


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_and_the_sdist_are_whole(dist):
    distribution.main(str(dist))


def test_a_wheel_with_a_stray_file_is_refused(dist, tmp_path):
    (wheel,) = dist.glob("*.whl")
    spoiled = Path(shutil.copy(wheel, tmp_path))
    with zipfile.ZipFile(spoiled, "a") as archive:
        archive.writestr("runs/model.json", "x")
    with pytest.raises(SystemExit, match=r"runs/model\.json"):
        distribution.check_wheel(spoiled)


def test_a_users_strict_mypy_sees_the_types_of_the_wheel(dist, tmp_path):
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "env", symlinks=True)
    packages = next((tmp_path / "env").glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(USER + WRONG)
    names = [f"torch.{name}" for name in NOT_NAMED.split()] + PACKAGES_NOT_NAMED.split()
    parts = [f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in names]
    (tmp_path / "mypy.ini").write_text("[mypy]\n" + "".join(parts))
    options = ["--strict", "--python-executable", str(tmp_path / "env" / "bin" / "python")]
    command = [sys.executable, "-m", "mypy", *options, "--cache-dir", os.devnull]
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    told = {"capture_output": True, "text": True, "timeout": 600}
    done = subprocess.run([*command, "user.py", "wrong.py"], cwd=tmp_path, env=given, **told)
    errors = [line.split(": ")[0] for line in done.stdout.splitlines() if ": error: " in line]
    assert errors == [f"wrong.py:{USER.count(chr(10)) + n}" for n in range(2, 7)]

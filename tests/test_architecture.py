"""The habits that a linter cannot keep: one sigmoid, one class per name, no pickle."""

import ast
import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from types import ModuleType

import pytest

import labelwise

SOURCE = Path(labelwise.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def modules():
    for info in pkgutil.walk_packages(labelwise.__path__, "labelwise."):
        if not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


def classes():
    for module in modules():
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == module.__name__:
                yield cls


SQUASHES = re.compile(r"\b(?:sigmoid|softmax|expit|log_expit|logsigmoid)\(")
# Log-odds of a fit of their own, not logits of a model: a Newton step, a threshold, a true chance.
OWN_ODDS = {
    "data/generated.py",
    "decide/promised_rules.py",
    "scores/calls.py",  # of detections, by what a person checked
    "answers/suspects.py",
    "metrics/shift.py",
    "retrieval/bound_query.py",
    "photos/words/answered.py",  # of a share, not of a photo
    "photos/words/classes.py",  # how much each class counts for a word
}


def test_scipy_is_imported_by_the_functions_that_need_it():
    at_the_top = re.compile(r"^(?:from|import) scipy\b", re.MULTILINE)
    assert [file.name for file in FILES if at_the_top.search(file.read_text())] == []


def test_only_links_objectives_and_ops_turn_logits_into_probabilities():
    allowed = ("links.py", "numeric", "objectives", "calibration", "networks")
    found = {
        file.relative_to(SOURCE).as_posix()
        for file in FILES
        if file.relative_to(SOURCE).parts[0] not in allowed and SQUASHES.search(file.read_text())
    }
    assert found == OWN_ODDS


# What torch offers under a private name alone: it may change with any version.
PRIVATE_TORCH = {
    "exports/parity.py: torch.utils._python_dispatch",
    "training/execution.py: torch._inductor",
    "training/execution.py: torch.ops.mkldnn._is_mkldnn_bf16_supported",
}


def test_private_names_of_torch_are_used_where_it_has_no_public_one():
    private = re.compile(r"\btorch(?:\.[a-z]\w*)*\._[a-z]\w*")
    used = {
        f"{file.relative_to(SOURCE).as_posix()}: {name}"
        for file in FILES
        for name in private.findall(file.read_text())
    }
    assert used == PRIVATE_TORCH


def test_no_pickle_is_read():
    for file in FILES:
        text = file.read_text()
        for call in re.findall(r"torch\.load\([^)]*\)", text):
            assert "weights_only=True" in call, f"{file}: {call}"
        assert not re.search(r"^\s*(import pickle|from pickle import load)", text, re.M) or (
            "Unpickler" in text
        ), file


def test_no_assert_guards_input():
    """An assert is left out under ``python -O``, so nothing may rest on one."""
    word = re.compile(r"\bassert\b")
    found = [
        f"{file.relative_to(SOURCE)}:{node.lineno}"
        for file in FILES
        if word.search(text := file.read_text())  # without it there is nothing to parse for
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assert)
    ]
    assert found == []


def test_sentences_are_plain_english():
    """``is no number`` and the like: words that people stumble over, in code and in messages."""
    odd = re.compile(
        r"(?<![Tt]here )\b(?:is|are) no (?!longer|other|more\b)[a-z]+|gone on with"
        r"|\bone a (?:core|file|label|row|image)\b"
    )
    found = [
        f"{file.relative_to(SOURCE)}: {match.group()}"
        for file in FILES
        for match in odd.finditer(" ".join(file.read_text().split()))
    ]
    assert found == []


CONCRETE_BASES = {
    "QuasibinaryLink": {"TrackedLink"},  # the same in training, its number a buffer of a module
    "_Around": {"NamedWatch", "LimitedWatch"},  # each forwards all but one call
    "Transform": {"GraphTransform"},  # whose resize a file does
    "RunFolder": {"LoadedRun"},  # which exports, too: models know nothing of exports
    "Reliability": {"CalibrationSums"},  # the same of every label, to which batches add
    "VerbGroup": {"Root", "Data", "Papers"},  # whose tables of names alone differ
}


SHARED_FIELDS = {"Strict", "ToolAnswer", "ListedPhoto"}  # of requests and answers


def test_classes_are_abstract_or_final():
    ours = set(classes())
    for cls in ours:
        for base in cls.__mro__[1:]:
            if base.__name__ in SHARED_FIELDS:
                continue
            if cls.__name__ in CONCRETE_BASES.get(base.__name__, ()):
                continue
            if base in ours and not issubclass(cls, BaseException):
                assert inspect.isabstract(base) or getattr(base, "_is_protocol", False), (
                    f"{cls.__name__} extends {base.__name__}, which is not abstract"
                )


def labelwise_home(name):
    return next(f"labelwise.{home}" for home, names in labelwise._HOMES.items() if name in names)


def test_public_names_are_those_of_their_own_packages():
    for name in labelwise.__all__:
        shown = getattr(labelwise, name)
        home = getattr(shown, "__module__", None)
        if home and home.startswith("labelwise.") and not isinstance(shown, ModuleType):
            package = importlib.import_module(labelwise_home(name))
            assert getattr(package, name) is shown
            if hasattr(package, "__path__"):
                assert name in package.__all__, f"{package.__name__} does not export {name}"
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        labelwise.nonsense  # noqa: B018


def test_examples_import_only_public_names():
    root = Path(__file__).parent.parent
    pages = "\n".join(p.read_text() for p in (root / "README.md", *(root / "docs").glob("*.md")))
    lines = re.findall(r"^from labelwise import (.+)$", pages, re.M)
    names = {name.strip() for line in lines for name in line.split(",")}
    assert "SPA" in names
    assert names <= set(labelwise.__all__)


WATCHED_IMPORT = """
import importlib, json, pkgutil, sys, warnings

found = []


def watched(name, real):
    def call(*given, **options):
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.split(".")[0] == "labelwise":
            found.append(f"{caller} calls warnings.{name}")
        return real(*given, **options)

    return call


for name in ("filterwarnings", "simplefilter", "resetwarnings"):
    setattr(warnings, name, watched(name, getattr(warnings, name)))

import PIL.Image, torch

PIL.Image.init()


def state():
    return {
        "gradients": torch.is_grad_enabled(),
        "type": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "disable": torch.compiler.disable is disable,
        "pixels": PIL.Image.MAX_IMAGE_PIXELS,
        "truncated": PIL.ImageFile.LOAD_TRUNCATED_IMAGES,
        "shown by": warnings.showwarning is shown,
        "hook": sys.excepthook is hook,
        "random": torch.random.get_rng_state().sum().item(),
    }


disable, shown, hook = torch.compiler.disable, warnings.showwarning, sys.excepthook
before = state()
import labelwise
from labelwise.exports.torch_programs import openvino_runtime

openvino_runtime()
for info in pkgutil.walk_packages(labelwise.__path__, "labelwise."):
    if not info.name.endswith("__main__"):
        importlib.import_module(info.name)
after = state()
found += [f"{name}: {before[name]} became {after[name]}" for name in before
          if before[name] != after[name]]
found += [f"sys.modules[{name!r}] is {module!r}" for name, module in sys.modules.items()
          if module is None or (not name.startswith("labelwise.")
                                and type(module).__module__.split(".")[0] == "labelwise")]
print(json.dumps(found))
"""


def test_importing_every_module_changes_nothing_of_the_program_that_does():
    done = subprocess.run(
        [sys.executable, "-c", WATCHED_IMPORT], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_no_two_classes_have_the_same_name():
    named = {}
    for cls in classes():
        if not cls.__name__.startswith("_"):
            named.setdefault(cls.__name__, set()).add(cls.__module__)
    assert {name: found for name, found in named.items() if len(found) > 1} == {}


def test_no_two_files_of_tests_have_the_same_name():
    # pytest imports them by that name: the second would not be collected.
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_every_folder_of_tests_can_be_run_alone():
    """What a file of tests imports lies beside it or in ``tests/``, not in another folder."""
    tests = Path(__file__).parent
    homes = {path.stem: path.parent for path in tests.rglob("*.py")}
    imports = [
        (path, name)
        for path in tests.rglob("*.py")
        for name in re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.M)
        if name in homes
    ]
    assert len(imports) > 100
    assert [pair for pair in imports if homes[pair[1]] not in (pair[0].parent, tests)] == []


def test_no_test_sets_the_clock_of_the_whole_process():
    """A server of other tests would wait by it: an event loop once slept for the uptime."""
    sets = re.compile(r"""setattr\(\s*(?:time,|["'](?:[\w.]+\.)?time\.)""")
    found = [
        file.name
        for file in sorted(Path(__file__).parent.rglob("*.py"))
        if sets.search(file.read_text())
    ]
    assert found == []


def begins_with_words(path):
    """Return whether the first statement of a file is a text, without parsing the rest of it."""
    passed_over = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING)
    with tokenize.open(path) as file:
        tokens = tokenize.generate_tokens(file.readline)
        first = next(token for token in tokens if token.type not in passed_over)
    return first.type == tokenize.STRING and bool(ast.literal_eval(first.string).strip())


def test_every_file_of_tests_says_what_it_is_held_to():
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    assert len(files) > 100
    assert [path.name for path in files if not begins_with_words(path)] == []


def test_benchmarks_import_names_that_exist():
    # They run by hand, so that nothing else would notice a name that has changed.
    root = Path(__file__).parent.parent / "benchmarks"
    imports = [
        (path.name, node.module, alias.name)
        for path in root.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "labelwise"
        for alias in node.names
    ]
    assert len(imports) > 100
    missing = [
        f"{file}: from {home} import {name}"
        for file, home, name in imports
        if not hasattr(importlib.import_module(home), name)
        and importlib.util.find_spec(f"{home}.{name}") is None
    ]
    assert missing == []

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
from pathlib import Path
from types import ModuleType

import labelwise

SOURCE, TESTS = Path(labelwise.__file__).parent, Path(__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
SOURCES = [(file.relative_to(SOURCE).as_posix(), file.read_text()) for file in FILES]


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
    "tables/generated.py",
    "decide/promised_rules.py",
    "evaluation/judge.py",  # how probabilities would have to bend
    "evaluation/cause.py",  # labels that are wrong or missing
    "scores/calls.py",  # of detections, by what a person checked
    "answers/suspects.py",
    "metrics/shift.py",
    "queries/bound_query.py",
    "photos/words/answered.py",  # of a share, not of a photo
    "photos/words/classes.py",  # how much each class counts for a word
}


def found_in(pattern, texts):
    """Return where a pattern is found in texts by name, and what."""
    search = re.compile(pattern, re.MULTILINE)
    return {f"{name}: {match[0]}" for name, text in texts for match in search.finditer(text)}


def test_sentences_are_plain_english():
    """``is no number`` and the like: words that people stumble over, in code and in messages."""
    odd = r"(?<![Tt]here )\b(?:is|are) no (?!longer|other|more\b)[a-z]+|gone on with"
    texts = ((name, " ".join(text.split())) for name, text in SOURCES)
    assert found_in(rf"{odd}|\bone a (?:core|file|label|row|image)\b", texts) == set()


def test_scipy_is_imported_by_the_functions_that_need_it():
    assert found_in(r"^(?:from|import) scipy\b", SOURCES) == set()


def test_only_links_objectives_and_ops_turn_logits_into_probabilities():
    allowed = ("links.py", "base/", "learn/", "calibration/")
    others = [(name, text) for name, text in SOURCES if not name.startswith(allowed)]
    assert {name for name, text in others if SQUASHES.search(text)} == OWN_ODDS


# What torch offers under a private name alone: it may change with any version.
PRIVATE_TORCH = {
    "exports/parity.py: torch.utils._python_dispatch",
    "training/execution.py: torch.ops.mkldnn._is_mkldnn_bf16_supported",
}


def test_private_names_of_torch_are_used_where_it_has_no_public_one():
    assert found_in(r"\btorch(?:\.[a-z]\w*)*\._[a-z]\w*", SOURCES) == PRIVATE_TORCH


def test_no_pickle_is_read():
    """Whoever imports pickle has an unpickler of its own."""
    loads = found_in(r"torch\.load\([^)]*\)", SOURCES)
    assert [call for call in loads if "weights_only=True" not in call] == []
    others = [(name, text) for name, text in SOURCES if "Unpickler" not in text]
    assert found_in(r"^\s*(import pickle|from pickle import load)", others) == set()


def test_no_assert_guards_input():
    """An assert is left out under ``python -O``, so nothing may rest on one."""
    assert found_in(r"^\s*assert\b", SOURCES) == set()


CONCRETE_BASES = {
    "QuasibinaryLink": {"TrackedLink"},  # the same in training, its number a buffer of a module
    "_Around": {"NamedWatch", "LimitedWatch"},  # each forwards all but one call
    "RunFolder": {"LoadedRun"},  # which exports, too: models know nothing of exports
    "Reliability": {"CalibrationSums"},  # the same of every label, to which batches add
    "AnsweredList": {"CheckSession"},  # the second also asks
}
SHARED_FIELDS = {"Strict", "ToolAnswer", "ListedPhoto", "LabelShare"}  # of requests and answers


def test_classes_are_abstract_or_final():
    ours = set(classes())
    concrete = {
        (base.__name__, cls.__name__)
        for cls in ours
        for base in ours.intersection(cls.__mro__[1:])
        if not issubclass(cls, BaseException) and base.__name__ not in SHARED_FIELDS
        if not inspect.isabstract(base) and not getattr(base, "_is_protocol", False)
    }
    assert concrete == {(base, name) for base, names in CONCRETE_BASES.items() for name in names}


def test_public_names_are_those_of_their_own_packages():
    for name in labelwise.__all__:
        shown = getattr(labelwise, name)
        home = getattr(shown, "__module__", None)
        if home and home.startswith("labelwise.") and not isinstance(shown, ModuleType):
            owner = next(one for one, names in labelwise._HOMES.items() if name in names)
            package = importlib.import_module(f"labelwise.{owner}")
            assert getattr(package, name) is shown
            if hasattr(package, "__path__"):
                assert name in package.__all__, f"{package.__name__} does not export {name}"


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

shown, hook = warnings.showwarning, sys.excepthook
import labelwise

heavy = {"torch", "numpy", "pyarrow", "PIL", "pydantic", "labelwise.base.allocator"}
found += [f"import labelwise loads {name}" for name in heavy & {*sys.modules}]
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


disable = torch.compiler.disable
before = state()
import labelwise.models.scoring, labelwise.photos, labelwise.server, labelwise.decide

slow = {"torchvision", "timm", "sklearn", "pandas", "rawpy", "scipy.stats", "scipy.io",
        "scipy.linalg"}
found += [f"everyday verbs wait for {name}" for name in slow & {*sys.modules}]
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


def test_imports_load_little_and_change_nothing_of_the_program_that_does():
    """The package alone loads nothing, and what everyday verbs wait for is torch, little else."""
    told = {"capture_output": True, "text": True, "check": True}
    done = subprocess.run([sys.executable, "-c", WATCHED_IMPORT], **told)
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_no_two_classes_have_the_same_name():
    named = {}
    for cls in classes():
        if not cls.__name__.startswith("_"):
            named.setdefault(cls.__name__, set()).add(cls.__module__)
    assert {name: found for name, found in named.items() if len(found) > 1} == {}


def test_every_folder_of_tests_can_be_run_alone():
    """What a file of tests imports lies beside it or in ``tests/``, not in another folder."""
    homes = {path.stem: path.parent for path in TESTS.rglob("*.py")}
    imports = [
        (path, name)
        for path in TESTS.rglob("*.py")
        for name in re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.M)
        if name in homes
    ]
    assert len(imports) > 100
    assert [pair for pair in imports if homes[pair[1]] not in (pair[0].parent, TESTS)] == []


def test_no_test_sets_the_clock_of_the_whole_process():
    """A server of other tests would wait by it: an event loop once slept for the uptime."""
    texts = [(path.name, path.read_text()) for path in TESTS.rglob("*.py")]
    assert found_in(r"""setattr\(\s*(?:time,|["'](?:[\w.]+\.)?time\.)""", texts) == set()


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

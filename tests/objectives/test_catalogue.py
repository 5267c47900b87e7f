"""The contract, over every method of the catalogue."""

import shutil
import sys

import contract
import pytest
import torch

from labelwise.errors import SettingsError
from labelwise.methods import LINKS, METHODS, link_from_spec, link_to_spec, make_objective

# Ranks and noise drawn by place in the batch do not follow a permutation: their exact forms do.
WITHOUT_DRAWS = {
    "warp": {"rank": "exact"},
    "rml": {"rank": "exact"},
    "top-k": {"eps": 0.0},
    "role": {"start": 0.5},
}
# The log-sum-exp over the images of a label grows with their number.
GROWS_WITH_THE_BATCH = {"two-way"}
# Names the outside relies on.
PROMISED = (
    "bce focal asl spa two-way softmax quasibinary uniform maxconf warp rml lsep pairwise "
    "bce+lpr focal+lpr asl+lpr spa+lpr focal+phi asl+phi"
)

every_method = pytest.mark.parametrize("name", METHODS)


def maker(name, **options):
    def make(facts):
        torch.manual_seed(0)
        return make_objective(name, facts, **options)

    return make


def exact(name):
    return maker(name, **WITHOUT_DRAWS.get(name, {}))


def new(name):
    return exact(name)(contract.facts(6, 5))


@every_method
def test_says_what_it_is(name):
    method = METHODS[name]
    assert method.probabilities in ("proper", "improper", "ranking only")
    assert method.sentence.endswith(".")
    assert len(method.sentence) < 100
    assert method.source
    assert (new(name).link is None) == (method.probabilities == "ranking only")


def test_no_promised_name_is_missing():
    assert set(PROMISED.split()) <= set(METHODS)


@every_method
def test_options_are_all_there_is_and_their_defaults_hold(name):
    facts = contract.facts(6, 5)
    options = dict(METHODS[name].options)
    torch.manual_seed(0)
    plain = METHODS[name].make(facts, **options)
    torch.manual_seed(0)
    assert repr(make_objective(name, facts)) == repr(plain)
    with pytest.raises(SettingsError, match="has no option 'nonsense'"):
        make_objective(name, facts, nonsense=1)


@pytest.mark.parametrize("name", [n for n in METHODS if METHODS[n].probabilities == "proper"])
def test_proper_methods_recover_probabilities(name):
    contract.assert_recovers_probabilities(exact(name)(contract.facts(256, 3)))


@pytest.mark.parametrize("name", [n for n in METHODS if METHODS[n].probabilities == "improper"])
def test_improper_methods_do_not(name):
    objective = exact(name)(contract.facts(256, 3))
    if objective.reads_unknown:
        pytest.skip("improper because of unknown labels; here all are known")
    assert contract.recovery_error(objective) > 0.02


@pytest.mark.parametrize("name", [n for n in METHODS if METHODS[n].probabilities == "ranking only"])
def test_ranking_methods_refuse_probabilities(name):
    with pytest.raises(SettingsError, match=r"ranks labels .* calibrate\.platt"):
        new(name).probabilities(torch.zeros(2, 5))


@pytest.mark.parametrize("name", sorted(set(METHODS) - GROWS_WITH_THE_BATCH))
def test_repeating_a_batch_changes_nothing(name):
    contract.assert_repeating_a_batch_changes_nothing(exact(name)(contract.facts(12, 5)))


@every_method
def test_finite_anywhere(name):
    contract.assert_finite_anywhere(maker(name))


@every_method
def test_equivariant(name):
    contract.assert_equivariant(exact(name))


@every_method
def test_gradient_is_right(name):
    if name == "role":
        pytest.skip("its stopped gradients are part of the method; golden vectors hold them")
    contract.assert_gradient_is_right(maker(name))


@every_method
def test_compiles_to_one_graph(name):
    contract.assert_compiles(maker(name), "aot_eager")


@every_method
def test_safe_under_autocast(name):
    contract.assert_safe_under_autocast(maker(name))


@every_method
def test_masks_are_slices(name):
    if new(name).reads_unknown:
        pytest.skip("unknown labels take part in this loss")
    contract.assert_masks_are_slices(exact(name))


@every_method
def test_state_round_trip(name):
    contract.assert_state_round_trip(maker(name))


@every_method
def test_deterministic(name):
    contract.assert_deterministic(maker(name))


@every_method
def test_link_survives_as_plain_data(name):
    objective = new(name)
    if objective.link is None:
        pytest.skip("no link")
    contract.value(objective, *contract.example())
    assert type(objective.link) is LINKS[objective.link.kind]
    logits = contract.example(seed=1)[0]
    again = link_from_spec(link_to_spec(objective.link))
    torch.testing.assert_close(again(logits), objective.link(logits), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own compiler
def test_compiled_kernels_agree():
    # torch's compiler needs g++, and cannot quote a path with a space in its include folders.
    able = shutil.which("g++") is not None and " " not in sys.prefix
    contract.assert_compiles(maker("spa+lpr"), "inductor" if able else "aot_eager")

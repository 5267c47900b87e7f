"""Links of every kind, calibrators on every base, rules of every kind, tiny models, pictures."""

from collections import UserDict
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from PIL import Image
from tiny_predictor import encoded

from labelwise.calibration import CALIBRATORS, AveragedCurves, ZeroShare
from labelwise.decide import AtMost, ExpectedF, OnePerGroup, Threshold, TopK, WithParents
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import LINKS, make_head
from labelwise.learn.objectives import (
    FocalMarginLink,
    PhiLink,
    QuasibinaryLink,
    Side,
    SoftmaxOrNoneLink,
    SPALink,
    WeightedSigmoid,
)
from labelwise.learn.predictor import Model, Predictor
from labelwise.links import Consistent, Grouped, Sigmoid, Softmax
from labelwise.models import HeadSpec
from labelwise.pictures import ArrayImages
from labelwise.types import LabelSpace

LABELS = 5
PARENTS = (2, 0, -1, 2, 1)  # a chain of four labels, and a child more of the first
WHOLLY = ("sigmoid", "softmax", "phi", "quasibinary", "nothing")  # two answer exactly 0 or 1
BACKBONES = ("small-cnn", "test_resnet", "test_vit")  # timm's own tiny CNN and ViT


def base_links():
    """Return the links that objectives bring, by name."""
    return {
        "sigmoid": Sigmoid(),
        "weighted sigmoid": WeightedSigmoid([0.5, 1.0, 2.0, 5.0, 9.0]),
        "softmax": Softmax(),
        "softmax, warmer": Softmax(1.7),
        "softmax or none": SoftmaxOrNoneLink(),
        "spa": SPALink(),
        "spa, other sides": SPALink(Side(2, 0.5, -1), Side(1, 2, 0.5)),
        "phi": PhiLink(),
        "phi, no margin": PhiLink(margin=0.0),
        "phi, detached": PhiLink(weight_grad="detached"),
        "phi, no exponents": PhiLink(gamma_neg=0.0, gamma_pos=0.0),
        "focal margin": FocalMarginLink(lam=None),
        "hill": FocalMarginLink(),
        "hill, other lambda": FocalMarginLink(lam=2.0),
        "quasibinary": QuasibinaryLink(0.8),
    }


class Made(UserDict):
    """Values by name, each made once, when it is first asked for: to list them costs nothing."""

    def __setitem__(self, name, maker):
        super().__setitem__(name, cache(maker))

    def __getitem__(self, name):
        return super().__getitem__(name)()


@cache
def labelled_logits():
    """Return logits and labels to fit calibrators on."""
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(0, 2, (120, LABELS)))
    chance = torch.from_numpy(rng.uniform(size=(120, LABELS)))
    return logits, (chance < torch.special.expit(0.7 * logits - 0.5)).double()


def fitted_link(calibrator, base):
    """Return a calibrator's link, fitted on a base link."""
    with catch_warnings():
        simplefilter("ignore")
        return CALIBRATORS[calibrator](*labelled_logits(), base)


@cache
def fitted_links():
    """Return calibrators fitted on base links, and links shifted to other zero shares.

    All pairs are made with the base links of WHOLLY, and with each other one every fourth.
    """
    makers = {
        f"{name} of {base}": partial(fitted_link, name, link)
        for number, (base, link) in enumerate([*base_links().items(), ("nothing", None)])
        for place, name in enumerate(CALIBRATORS)
        if base in WHOLLY or (place - number) % 4 == 0
    }
    curves = (np.linspace(*ends, 10).reshape(2, 5).tolist() for ends in ((0.4, 2), (-1, 1)))
    makers["averaged"] = partial(AveragedCurves, Sigmoid(), *curves, [0.3, 1.2], limit=50.0)
    for place, ratio in enumerate((0.3, 1.0, 4.0)):
        for number, (base, link) in enumerate(base_links().items()):
            if base in WHOLLY or (place - number) % 3 == 0:
                makers[f"{base}, zero share {ratio}"] = partial(ZeroShare, link, ratio)
        makers[f"platt, zero share {ratio}"] = lambda ratio=ratio: ZeroShare(
            fitted_links()["platt of sigmoid"], ratio
        )
    for base in ("sigmoid", "phi", "softmax", "softmax or none", "quasibinary"):
        makers[f"consistent {base}"] = partial(Consistent, base_links()[base], PARENTS)
    for base in ("platt of sigmoid", "isotonic of quasibinary"):
        makers[f"consistent {base}"] = lambda base=base: Consistent(fitted_links()[base], PARENTS)
    makers["consistent, zero share"] = lambda: ZeroShare(
        fitted_links()["consistent platt of sigmoid"], 0.4
    )
    makers["grouped platt"] = lambda: Grouped(fitted_links()["platt of sigmoid"], [[2, 0, 4]], [])
    makers["grouped, all of them"] = partial(Grouped, Sigmoid(), [[3, 0]], [[1, 4, 2]])
    makers["consistent, no parents"] = partial(Consistent, Sigmoid(), (-1,) * LABELS)
    return Made(makers)


@cache
def link_of_each_kind():
    """Return one link of each kind in the catalogue."""
    return Made({kind: partial(_one_of_kind, kind) for kind in LINKS})


def _one_of_kind(kind):
    links = chain(reversed(base_links().values()), map(fitted_links().get, [*fitted_links()][::-1]))
    return next(link for link in links if link.kind == kind)


def rules():
    """Return one rule of every kind, and some of their forms."""
    return {
        "one threshold": Threshold(0.4),
        "a threshold per label": Threshold((0.1, 0.3, 0.5, 0.7, 2.0)),
        "top 2": TopK(2),
        "top 9": TopK(9),
        "expected F": ExpectedF(),
        "expected F2": ExpectedF(2.0),
        "at most 2": AtMost(Threshold(0.2), 2),
        "at most 1 of expected F": AtMost(ExpectedF(0.5), 1),
        "with parents": WithParents(Threshold((0.9, 0.3, 0.5, 0.2, 0.4)), PARENTS),
        "one per group": OnePerGroup(Threshold(0.3), ((3, 0),), ((1, 4),)),
        "with parents of the top 2": WithParents(TopK(2), PARENTS),
    }


def predictor(
    backbone="small-cnn", head="linear", link=None, rule=None, *, mirrored=False, crops=1, **change
):
    """Return a model with random weights, batch norms included."""
    torch.manual_seed(0)
    network = create_backbone(backbone, image_size=None if backbone == "small-cnn" else 64)
    network.transform = replace(network.transform, **change)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, std=0.3)
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 1.5)
    options = {"width": 16, "feedforward": 32} if head == "query2label" else {}
    spec = HeadSpec(head, options)
    head = make_head(spec, network.channels, LABELS)
    model = Model(network, head, mirrored=mirrored, crops=crops).eval()
    space = LabelSpace(("dog", "red car", "Straße", "a,b", "e"))
    return Predictor(model, spec, space, link, rule or Threshold(0.5), "bce")


def spec(model):
    """Return the description of a model whose weights were never saved."""
    return model.spec("0" * 63 + "1")


def pictures(count=4, size=(90, 70), seed=0):
    """Return pictures with edges and slopes, not only noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0 : size[0], 0 : size[1]]
    waves = []
    for _ in range(count):
        wave = np.sin(rows / rng.uniform(2, 9) + columns / rng.uniform(2, 9))
        waves.append(127 + 120 * wave[..., None] * rng.uniform(0.3, 1, 3))
    noise = rng.normal(0, 12, (count, *size, 3))
    return ArrayImages((np.stack(waves) + noise).clip(0, 255).astype(np.uint8))


def photo(number):
    """Return the bytes of a photo as cameras, phones, scanners and web sites write them."""
    rng = np.random.default_rng(number)
    large = number % 10 == 0
    sides = rng.integers(500, 900, 2) if large else rng.integers(30, 160, 2)
    picture = Image.fromarray(pictures(1, tuple(sides.tolist()), number).pixels[0])
    exif = Image.Exif()
    exif[0x0112] = number % 8 + 1
    kind = number % 7
    if large or kind < 3:
        return encoded(picture, "JPEG", exif=exif, quality=60 + number % 40, progressive=kind == 1)
    if kind == 3:
        return encoded(picture, "PNG", exif=exif)
    if kind == 4:
        picture.putalpha(Image.radial_gradient("L").resize(picture.size))
        return encoded(picture, "PNG")
    if kind == 5:
        return encoded(picture, "WEBP", exif=exif)
    grey = np.asarray(picture.convert("L")).astype(np.uint16) * 257
    return encoded(Image.fromarray(grey), "PNG")

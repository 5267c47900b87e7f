"""READINGS: for every method, how its logits become probabilities, and why not where they do not.

A loss is proper under a link if the expected loss of a label of probability e is least where the
link reads e. For a loss of single entries that link is log odds = log absent'(v) - log -present'(v)
if it rises; for others it has to be found, or shown not to exist. ``docs/links.md`` sets beside
each sentence what a fit of free logits to the exact expected loss gives.
"""

_PAIRS = "as without pairs, if labels are independent given the image: the pairs' own optimum"
_PHI = "log odds of the slopes of both halves (phi); a sigmoid reads the optimum of another loss"
_MISSING = "with complete labels it is cross-entropy; an unknown label counts as"

READINGS: dict[str, str] = {
    "bce": "log odds = v.",
    "bce+lpr": f"{_PAIRS} is the same.",
    "focal": "easy entries count less on both sides, so its sigmoids stay near one half.",
    "focal+phi": f"{_PHI}.",
    "focal+lpr": "as focal: the pairs pull towards right log-odds, the loss does not.",
    "asl": "easy absent labels count least, so its sigmoids are too high for rare labels.",
    "asl+phi": f"{_PHI}; below the margin every logit reads 0.",
    "asl+lpr": "as asl: the pairs pull towards right log-odds, the loss does not.",
    "focal-official": "absent labels alone are focused, by detached weights: sigmoids too high.",
    "focal-official+phi": "log odds = v + 2 log sigmoid(v), by the gradient of detached weights.",
    "focal-official+lpr": "as focal-official: the loss and the pairs pull in two directions.",
    "asl-official": "as asl with detached weights, whose optimum is another one, further off.",
    "asl-official+phi": "the map of detached weights; probabilities above 0.943 are out of reach.",
    "asl-official+lpr": "as asl-official: the loss and the pairs pull in two directions.",
    "spa": "log odds = log(k- z+ / k+ z-) - softplus(-k-(v - b-)) + softplus(k+(v - b+)).",
    "spa+lpr": f"{_PAIRS} is where SPA's log-odds are right.",
    "two-way": "unchanged if all logits move together: no level is zero, and there is no link.",
    "softmax": "shares of one image sum to 1, so labels that come together cannot be right.",
    "softmax-or-none": "right where images have at most one label; several share out one.",
    "uniform": "softmax, and pulled to 1 / K on images without labels.",
    "maxconf": "softmax, and its largest answer pushed down on images without labels.",
    "quasibinary": "p = exp(v) / C with one C for all, clipped at 1.",
    "zlpr": "what a logit costs depends on the other labels of the image: too unsure of many.",
    "warp": "hinges of differences: no level is zero, and there is no link.",
    "rml": "ramps of differences and of single scores; flat beyond, so no link exists.",
    "lsep": "unchanged if all logits move together: no level is zero, and there is no link.",
    "pairwise": "hinges of differences: no level is zero, and there is no link.",
    "bce+mmce": "as bce: the squared calibration error is least at the same place.",
    "bce+mdca": "the absolute gap of a batch asks for a median: rare labels come out rarer.",
    "bce+mbls": "as bce up to log-odds of 6 either way; beyond, probabilities stop there.",
    "db": "the weight of an entry depends on the other labels of the image: no link exists.",
    "an": f"{_MISSING} an absence, so p is the chance to be known present.",
    "an-ls": "label smoothing: p comes out as s + (1 - 2 s) p, of the chance to be known present.",
    "wan": "absences together weigh as much as one presence: log odds + log(K - 1).",
    "epr": "known presences push up and the mean number of labels holds down: no entry has a rule.",
    "pr": "a linear price on sigmoids drives each to 0 or 1.",
    "iun": f"{_MISSING} nothing; a bound, for tables that know all absences.",
    "iu": f"{_MISSING} nothing, so labels never known absent go to 1.",
    "bce-ls": "label smoothing: p comes out as s + (1 - 2 s) p.",
    "role": "estimates and network agree with each other and with the known labels alone.",
    "hill": "the slopes of both halves give a link that rises; unknown labels count as absent.",
    "splc": "the slopes of both halves give a link that rises; unknown labels are changed.",
    "ll-r": f"{_MISSING} an absence unless its loss is large: the share dropped decides.",
    "ll-ct": f"{_MISSING} an absence unless its loss is large, then as a presence.",
    "ll-cp": f"{_MISSING} an absence until its loss is large, then as a presence for good.",
    "ll-r+boostlu": "as ll-r: its head changes how logits are made, not how they are read.",
    "ll-ct+boostlu": "as ll-ct: its head changes how logits are made, not how they are read.",
    "ll-cp+boostlu": "as ll-cp: its head changes how logits are made, not how they are read.",
    "em": f"{_MISSING} undecided, so every label is called likelier than not.",
    "em+apl": f"{_MISSING} undecided, or as unlikely as the network once thought.",
    "gr": f"{_MISSING} partly present, by a guess from the network's own belief.",
    "top-k": "a hinge on the k-th score; softmax is a reading, not its link.",
    "smooth-top-k": "a smooth margin on the k-th score; softmax is a reading, not its link.",
    "average-k": "takes its own proposals as present: p is a place among the first k.",
}

"""What an exported ``.onnx`` file is, as a ``model.json`` would say it: for indexes and servers.

The weights of a file are known by the hash of the file: those of eight bits have logits of their
own, and an index of the one must not go on with the other.
"""

import hashlib
from pathlib import Path

from labelwise.errors import CheckpointError, SettingsError
from labelwise.methods import link_to_spec, rule_to_spec
from labelwise.models.graph_file import features_of, read_model
from labelwise.models.spec import NOT_CALIBRATED, BackboneSpec, HeadSpec, ModelSpec

KIND = "exported"


def exported_caution(path: Path) -> str | None:
    """Return what a file says must stand beside its answers."""
    return read_model(_content(path), str(path))[1].caution


def exported_spec(path: Path) -> ModelSpec:
    """Return what a file says of itself, with its features for a backbone."""
    content = _content(path)
    proto, facts = read_model(content, str(path))
    features = features_of(proto)
    if features is None:
        raise SettingsError(
            f"{path} has no features whose weighted sums are its logits, by which photos are told "
            "to be alike; give the folder of the run"
        )
    if facts.caution not in (None, NOT_CALIBRATED):
        raise SettingsError(f"{path} is {facts.caution}; give the folder of its run")
    return ModelSpec(
        method=facts.method,
        labels=facts.space.names,
        backbone=BackboneSpec(f"{facts.precision} ONNX", features.width),
        transform=facts.transform,
        head=HeadSpec(KIND),
        link=None if facts.link is None else link_to_spec(facts.link),
        rule=rule_to_spec(facts.rule),
        promises=tuple(dict(one) for one in facts.promises),
        taxonomy=None if facts.taxonomy is None else dict(facts.taxonomy.parents),
        answers=None if facts.caution is None else 0,
        weights_sha256=hashlib.sha256(content).hexdigest(),
    )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None

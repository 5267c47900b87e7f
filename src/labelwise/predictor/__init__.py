"""Predictor: what is deployed. Backbone, head, link, rule, label names; no training state.

A model folder holds ``model.safetensors`` (the weights) and ``model.json``, a :class:`ModelSpec`:
everything else, the versions it was written with, and the hash of the weights it belongs to. Link
and rule can be read from it without the weights. Tensors have the names of :class:`Model`, or
those of timm, so that timm can load the file too.
"""

from labelwise.predictor.model import Model
from labelwise.predictor.predictor import WEIGHTS_FILE, Predictor
from labelwise.predictor.spec import MODEL_FILE, HeadSpec, ModelSpec

__all__ = ["MODEL_FILE", "WEIGHTS_FILE", "HeadSpec", "Model", "ModelSpec", "Predictor"]

"""Recipes: the settings that the papers' experiments share, with the keys of the settings file.

SGD, CIFAR, COCO   as the papers state them, gaps filled from their code (METHODS)
GOOD_CIFAR         a good recipe of minutes: one-cycle, batch 128, stronger weight decay
SOFTMAX_OR_NONE    our answer to CIFAR60+40: GOOD_CIFAR, longer, with stronger augmentation
PRETRAINED         our better answer: an ImageNet network, pictures scaled up to 192 pixels
FROZEN             a head on the frozen features of a pretrained backbone: seconds
"""

from labelwise.experiments.experiment import Values

__all__ = ["CIFAR", "COCO", "FROZEN", "GOOD_CIFAR", "PRETRAINED", "SGD", "SOFTMAX_OR_NONE"]

SGD: Values = {
    "recipe.optimizer.name": "sgd",
    "recipe.optimizer.momentum": 0.9,
    "recipe.optimizer.weight_decay": 1e-4,
    "recipe.keep": "last",
    "precision": "bf16",
}
CIFAR: Values = {
    **SGD,
    "augment": "crop-flip",
    "recipe.optimizer.nesterov": False,
    "recipe.optimizer.lr": 0.1,
    "recipe.schedule.name": "step",
    "recipe.schedule.milestones": [0.5, 0.75],
    "recipe.prior_bias": False,
    "batch_size": 64,
    "calibrate": "none",
}
GOOD_CIFAR: Values = {
    "recipe.epochs": 30,
    "recipe.schedule.name": "one-cycle",
    "recipe.schedule.rise": 0.2,
    "recipe.optimizer.weight_decay": 5e-4,
    "recipe.optimizer.nesterov": True,
    "batch_size": 128,
}
SOFTMAX_OR_NONE: Values = {
    **GOOD_CIFAR,
    "method": "softmax-or-none",
    "augment": "crop-flip+trivial",
    "mirror": True,
    "recipe.epochs": 70,
    "recipe.ema": 0.999,
    "recipe.prior_bias": True,
}
PRETRAINED: Values = {
    **SOFTMAX_OR_NONE,
    "backbone": "tf_efficientnet_lite0",
    "weights": "pretrained",
    "image_size": 192,
    "squash": True,
    "augment": "shift+flip+trivial",
    "recipe.epochs": 8,
    "recipe.ema": 0.998,
    "recipe.optimizer.name": "adamw",
    "recipe.optimizer.lr": 8e-4,
    "recipe.optimizer.weight_decay": 0.05,
}
COCO: Values = {
    **SGD,
    "augment": "resized-crop",
    "recipe.optimizer.lr": 0.01,
    "recipe.optimizer.backbone_lr": 0.1,
    "recipe.epochs": 40,
    "recipe.schedule.name": "cosine",
    "weights": "pretrained",
    "calibrate": "none",
}
FROZEN: Values = {
    "backbone": "identity",
    "image_size": None,
    "squash": False,
    "freeze": 0,
    "augment": "none",
    "mirror": False,
    "recipe.optimizer.name": "adamw",
    "recipe.optimizer.lr": 5e-4,
    "recipe.optimizer.weight_decay": 0.05,
    "recipe.optimizer.backbone_lr": 1.0,
    "recipe.schedule.name": "one-cycle",
    "recipe.epochs": 15,
    "recipe.ema": 0.0,
    "recipe.prior_bias": True,
    "batch_size": 256,
    "weights": None,
    "precision": "32",
}

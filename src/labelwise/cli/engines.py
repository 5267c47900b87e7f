"""Where shards are worked on, as a command line names it: an engine, and who decodes for it."""

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labelwise.pictures.inputs import PictureReader
    from labelwise.shards import Engine


def cluster_decoding(
    run: Path, engine: str, workers: int, decoder: str, decoders: int
) -> "PictureReader":
    """Return who decodes for the workers on a cluster, after a look at what does not go."""
    from labelwise.errors import SettingsError
    from labelwise.models.loading import is_exported

    if engine != "ray":
        raise SettingsError("--decoders is for a cluster: add --engine ray")
    if decoder == "cuda":
        raise SettingsError("--decode cuda decodes on the worker's GPU, --decoders on cores")
    if is_exported(run):
        raise SettingsError(
            "--decoders is for the model of a run: an exported file scales pictures by itself"
        )
    from labelwise.shards.ray_decoding import RayDecoding

    return RayDecoding(ahead=1 + ceil(decoders / workers))


def make_engine(name: str, workers: int, device: str = "cpu", decoders: int = 0) -> "Engine":
    """Return the engine of a name, whose workers compute on a device.

    Two workers then share a GPU where others decode: one computes while the other waits for the
    first pictures of its shard.
    """
    if name == "ray":
        from labelwise.errors import SettingsError
        from labelwise.shards.ray_cluster import RayEngine

        kind, _, number = device.partition(":")
        if number:
            raise SettingsError(
                f"--engine ray gives each worker its own GPU: give --device {kind}, not {device}"
            )
        gpus = 1.0 if kind == "cuda" else 0.0
        if decoders and gpus:
            workers, gpus = 2 * workers, gpus / 2
        return RayEngine(workers, gpus=gpus, decoders=decoders)
    from labelwise.shards import LocalEngine

    return LocalEngine(workers)

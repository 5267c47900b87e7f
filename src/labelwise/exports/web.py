"""``export --format web``: a static folder whose page tags photos in the browser, offline."""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory

from labelwise.base.files import replacing, replacing_folder
from labelwise.base.html import tag
from labelwise.base.progress import Watch
from labelwise.errors import SettingsError
from labelwise.exports.links import require_new_folder
from labelwise.exports.onnx_file import facts_of, onnx_content
from labelwise.exports.parity import Parity
from labelwise.models import ModelSpec, Predictor
from labelwise.pictures import ImageSource

RUNTIME = "1.30.0"
HASHES = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": (
        "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2"
    ),
}


def export_web(
    predictor: Predictor,
    spec: ModelSpec,
    folder: Path,
    images: ImageSource,
    rows: Sequence[int],
    *,
    runtime: Path | None = None,
    exact_resize: bool = True,
    watch: Watch | None = None,
) -> tuple[int, Parity]:
    """Write the page, its model and its runtime to a new folder; return the model's size too."""
    folder = Path(folder)
    require_new_folder(folder)
    parts = find_runtime(runtime)
    facts = facts_of(predictor, spec, exact_resize=exact_resize)
    content, parity = onnx_content(predictor, facts, images, rows, watch)
    with replacing_folder(folder) as temporary:
        (temporary / "ort").mkdir()
        for name in HASHES:
            shutil.copyfile(parts / name, temporary / "ort" / name)
        (temporary / "model.onnx").write_bytes(content)
        (temporary / "tagger.js").write_text(_asset("tagger.js"), encoding="utf-8")
        style = files("labelwise.base").joinpath("style.css").read_text(encoding="utf-8")
        (temporary / "style.css").write_text(style + _asset("tagger.css"), encoding="utf-8")
        (temporary / "index.html").write_text(page_of(predictor), encoding="utf-8")
    return len(content), parity


def page_of(predictor: Predictor) -> str:
    """Return the page that runs a model in the browser."""
    names, caution = predictor.space.names, predictor.caution
    text = json.dumps({"labels": names, "ranks": predictor.link is None}, ensure_ascii=False)
    return Template(_asset("tagger.html")).substitute(
        count=f"{len(names):,}",
        caution="" if caution is None else tag("p", caution, class_="note"),
        facts=text.replace("<", "\\u003c"),  # in a script element only "<" could end it
    )


def _asset(name: str) -> str:
    return files("labelwise.exports").joinpath(name).read_text(encoding="utf-8")


def find_runtime(package: Path | None = None) -> Path:
    """Return a folder with the files of onnxruntime-web: cached, from a package, or from npm."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(root) / "labelwise" / f"onnxruntime-web-{RUNTIME}"
    if package is None and all(_whole(cache / name) for name in HASHES):
        return cache
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _unpack(_fetch(folder) if package is None else package, folder)
        for name in HASHES:
            with replacing(cache / name) as temporary:
                shutil.copyfile(folder / name, temporary)
    return cache


def _whole(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == HASHES[path.name]
    except OSError:
        return False


def _fetch(folder: Path) -> Path:
    instead = (
        f"fetch the package onnxruntime-web {RUNTIME} on another machine "
        f"(npm pack onnxruntime-web@{RUNTIME}) and give the .tgz with --runtime"
    )
    npm = shutil.which("npm")
    if npm is None:
        raise SettingsError(f"the page needs onnxruntime-web, and npm is not installed; {instead}")
    command = [npm, "pack", "--silent", f"onnxruntime-web@{RUNTIME}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    archives = list(folder.glob("onnxruntime-web-*.tgz"))
    if done.returncode or not archives:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SettingsError(f"npm cannot fetch onnxruntime-web ({reason}); {instead}")
    return archives[0]


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive) as package:
            for name in HASHES:
                member = package.extractfile(f"package/dist/{name}")
                if member is None:
                    raise KeyError(name)
                (folder / name).write_bytes(member.read())
    except (OSError, KeyError, tarfile.TarError) as error:
        raise SettingsError(f"{archive} is not the npm package onnxruntime-web: {error}") from None
    wrong = [name for name in HASHES if not _whole(folder / name)]
    if wrong:
        raise SettingsError(f"{archive} must be onnxruntime-web {RUNTIME}, {wrong[0]} is another")

"""Check the wheel and the sdist in a folder; ``make dist`` runs this after building them.

    python tests/distribution.py dist

The wheel must hold every module of the source and nothing else, carry ``py.typed``, the licence,
readable metadata and the command, and answer from a fresh environment that has only the wheel.
"""

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT_OUT = ("/runs/", "/site/", "/.venv/", "__pycache__", ".ipynb_checkpoints", ".pyc")


def sources() -> set[str]:
    """Return the files that belong to the package, as a wheel names them."""
    files = (ROOT / "src" / "labelwise").rglob("*")
    kept = (f for f in files if f.is_file() and "__pycache__" not in f.parts)
    return {f.relative_to(ROOT / "src").as_posix() for f in kept}


def check_wheel(wheel: Path) -> None:
    """Raise unless the wheel holds the package, its metadata and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(info).decode())
    packed = {name for name in names if ".dist-info/" not in name}
    if packed != sources():
        raise SystemExit(f"{wheel.name}: differs from the source in {sorted(packed ^ sources())}")
    facts = info.removesuffix("METADATA")
    for needed in ("labelwise/py.typed", f"{facts}licenses/LICENSE", f"{facts}entry_points.txt"):
        if needed not in names:
            raise SystemExit(f"{wheel.name}: {needed} is missing")
    if metadata["Description-Content-Type"] != "text/markdown" or not metadata.get_payload():
        raise SystemExit(f"{wheel.name}: the description must be the README, in Markdown")


def check_sdist(sdist: Path) -> None:
    """Raise unless the sdist holds what is needed to build and test, and no leftovers."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "Makefile"}
    needed |= {"tests/golden.json", *(f"src/{name}" for name in sources())}
    if not needed <= names:
        raise SystemExit(f"{sdist.name}: lacks {sorted(needed - names)}")
    stray = sorted(name for name in names if any(part in f"/{name}" for part in KEPT_OUT))
    if stray:
        raise SystemExit(f"{sdist.name}: holds {stray}")


def check_install(wheel: Path) -> None:
    """Raise unless the wheel alone, without dependencies, imports and knows its version."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder)
        python = str(Path(folder, "bin", "python"))
        pip = [sys.executable, "-m", "pip", "--python", python]
        install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)]
        subprocess.run([*pip, *install], check=True, cwd=folder)
        command = [python, "-I", "-c", "import labelwise; print(labelwise.__version__)"]
        shown = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True)
    if shown.stdout.strip() != wheel.name.split("-")[1]:
        raise SystemExit(f"{wheel.name}: labelwise says it is version {shown.stdout.strip()}")


def main(folder: str) -> None:
    """Check the one wheel and the one sdist in a folder."""
    (wheel,), (sdist,) = Path(folder).glob("*.whl"), Path(folder).glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)
    check_install(wheel.resolve())
    print(f"{wheel.name} and {sdist.name} are whole")


if __name__ == "__main__":
    main(sys.argv[1])

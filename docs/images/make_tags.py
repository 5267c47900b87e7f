"""Draw ``tags.png``: photos with the tags and probabilities that ``labelwise predict`` gives them.

    python docs/images/make_tags.py RUN PHOTO... -o docs/images/tags.png

RUN is the folder of a trained model. In the README its head was solved on the features of 7,957
COCO photos of 192 pixels (80 labels) by the pretrained network that ``labelwise train`` takes. The
photos are four of scikit-image's own, in the public domain or CC0: ``chelsea.png`` (Stefan van der
Walt), ``coffee.png`` (Rachel Michetti), ``astronaut.png`` (NASA) and ``rocket.jpg`` (SpaceX).
"""

import argparse
import json
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image

SIDE = 320
SHOWN = 3  # further probabilities below the tags


def answers(run: Path, photos: list[Path]) -> list[dict]:
    """Return what the typed command says of each photo."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "answers.jsonl"
        command = [sys.executable, "-m", "labelwise", "predict", str(run), *map(str, photos)]
        subprocess.run([*command, "-o", str(out)], check=True, capture_output=True)
        return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def square(photo: Path) -> Image.Image:
    """Return the middle of a photo."""
    image = Image.open(photo).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))


def main() -> None:
    """Ask for the tags, and draw them below their photos."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    found = answers(options.run, options.photos)
    figure, axes = plt.subplots(1, len(found), figsize=(3.1 * len(found), 4.1), squeeze=False)
    for axis, photo, answer in zip(axes[0], options.photos, found, strict=True):
        axis.imshow(square(photo))
        axis.set_axis_off()
        ranked = sorted(answer["probs"].items(), key=lambda pair: -pair[1])
        tags = [name for name, _ in ranked if name in answer["labels"]]
        axis.set_title(", ".join(tags) or "none of the labels", fontsize=13, fontweight="bold")
        lines = [f"{name}  {chance:.0%}" for name, chance in ranked[: max(len(tags), SHOWN)]]
        axis.text(
            0.0,
            -0.03,
            "\n".join(lines),
            transform=axis.transAxes,
            va="top",
            fontsize=11.5,
            color="#444444",
            linespacing=1.35,
        )
    figure.tight_layout()
    drawn = BytesIO()
    figure.savefig(drawn, dpi=80, facecolor="white", bbox_inches="tight")
    Image.open(drawn).convert("RGB").quantize(128).save(options.out, optimize=True)


if __name__ == "__main__":
    main()

"""``labelwise start``: from a folder of photos and a list of words to a run."""

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from labelwise.photos.words.start import Started


FAILURES_SHOWN = 5
FOLDERS_SHOWN = 3


def start(
    photos: Annotated[list[Path], typer.Argument(help="Folders of photos, and image files.")],
    words: Annotated[
        Path,
        typer.Option(
            help="One word per line, such as: dog. Also with texts that describe it and the word "
            "it is a kind of: 'dog: a dog, a puppy; pet'."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "--scorer",
            "-m",
            envvar="LABELWISE_WORDS",
            help="A folder with a text-image model: CLIP, SigLIP or SigLIP 2 of transformers, or "
            "CLIP of open_clip; or one with a sentence encoder, that is one .onnx file and "
            "tokenizer.json, perhaps with an image classifier as timm writes it and classes.txt. "
            "hf://OWNER/NAME fetches a model of transformers from the hub.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The run's folder.")] = Path("run"),
    answers: Annotated[
        str | None,
        typer.Option(help="What people said of photos: any label table that labelwise reads."),
    ] = None,
    set_aside: Annotated[
        float,
        typer.Option(
            min=0, max=0.9, help="Share of the answered photos that is kept for promises."
        ),
    ] = 0.2,
    against: Annotated[
        Path | None,
        typer.Option(
            help="A run that `labelwise train RUN/answers.csv` made: both are compared on the "
            "photos set aside, and told apart or not."
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(min=32, help="Side of the classifier's input; its own if left out."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at once.")] = 64,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Make a run from photos and words alone.

    The run can be used as any other: predict, index, search, review, tag, serve, export. Until
    people have answered, its probabilities are a guess and nothing is promised. Give --answers
    when there are some; run it again with more words or photos, and the answers are kept.
    """
    from labelwise.cli.predict import find_photos
    from labelwise.cli.text import complain, resumable, say
    from labelwise.data import load
    from labelwise.photos.words import WordList, open_scorer
    from labelwise.photos.words.start import start as start_run
    from labelwise.pictures import PictureImages
    from labelwise.system.progress import make_watch

    vocabulary = WordList.read(words)
    table = None if answers is None else load(answers, skip_missing=True)
    images = PictureImages(find_photos(photos))
    with _begun(out), resumable(out):
        scorer = open_scorer(model, image_size=image_size, cache=out)
        done = start_run(
            images,
            vocabulary,
            scorer,
            out,
            answers=table,
            set_aside=set_aside,
            batch_size=batch_size,
            device=device,
            watch=make_watch(),
        )
    for failure in done.failures[:FAILURES_SHOWN]:
        complain(failure.reason)
    if len(done.failures) > FAILURES_SHOWN:
        complain(f"and {len(done.failures) - FAILURES_SHOWN:,} more photos could not be read")
    for note in (*(() if table is None else table.notes), *done.notes):
        say(note)
    _tell(done, photos, words)
    if against is not None:
        from labelwise.photos.words.compared import compare_runs

        for difference in compare_runs(out, against):
            say(str(difference))
    if done.failures:
        raise typer.Exit(1)


@contextmanager
def _begun(out: Path) -> Iterator[None]:
    """Have a folder, and do not leave a new one behind if we fail before a photo was read."""
    from labelwise.errors import LabelwiseError
    from labelwise.photos.words.start import EMBEDDINGS

    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except LabelwiseError:
        if new and not any(one.is_file() for one in (out / EMBEDDINGS).rglob("*")):
            shutil.rmtree(out)
        raise


def _tell(done: "Started", photos: list[Path], words: Path) -> None:
    """Say what the run knows, and what to do next."""
    from labelwise.cli.text import say, show_table
    from labelwise.models.spec import NOT_CALIBRATED
    from labelwise.system.text import counted

    names = done.predictor.space.names
    say(f"{counted(done.photos, 'photo')} and {counted(len(names), 'word')}: {done.folder}")
    if done.answered is None:
        if done.nearest_classes:
            pairs = list(zip(names, done.nearest_classes, strict=True))
            show_table(("word", "nearest class of the classifier"), pairs)
            say(
                "where that is another thing, the word was not understood: describe it in the "
                "language of the encoder, as in 'Hund: a dog'"
            )
        say(NOT_CALIBRATED)
        places = photos if len(photos) <= FOLDERS_SHOWN else ["PHOTOS"]
        told = [part for place in places for part in ("--label", str(place))]
        told += ["--words", str(words), "--guide", str(done.folder)]
        say(f"to answer in a browser: labelwise serve {shlex.join(told)}")
        return
    rows = [
        (name, "no answers yet", "")
        if name in done.predictor.unanswered
        else (name, f"{share:.2%}", f"{low:.2%} to {high:.2%}")
        for name, (share, low, high) in zip(names, done.answered.shares.tolist(), strict=True)
    ]
    show_table(("word", "share of the photos", "90 % interval"), rows)
    say(
        f"calibrated on {counted(done.fitted_on, 'answered photo')}: "
        f"{done.answered.first.error_in_words('answered photos')}"
    )
    say(
        "shares and this error suppose that the answered photos were drawn at random: where a "
        "guide or a person chose them, count with labelwise estimate"
    )
    if done.predictor.caution is not None:
        say(done.predictor.caution)
    if done.aside:
        aside = counted(done.aside, "answered photo")
        say(f"{aside} {'was' if done.aside == 1 else 'were'} set aside: promises are made on them")
    else:
        say(
            "no answered photo was set aside, so nothing can be promised; --set-aside 0.2 does "
            "that, for photos that are not of the split train"
        )

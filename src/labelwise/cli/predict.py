"""``labelwise predict``: the labels of image files."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labelwise.cli.engines import cluster_decoding, make_engine
from labelwise.cli.options import A_MODEL, DecodeKind, DecodeOption, chosen_decoder
from labelwise.system.text import counted

if TYPE_CHECKING:
    from torch import Tensor

    from labelwise.links import Link
    from labelwise.models import DeployedModel
    from labelwise.models.answer_rows import Answer
    from labelwise.models.onnx_answers import OnnxAnswers
    from labelwise.pictures import ImageSource
    from labelwise.predictions import Predictions
    from labelwise.taxonomy import LabelTree, Taxonomy


ROWS_SHOWN = 40
LABELS_SHOWN = 5
SHARD_ROWS = 4096


def predict(
    run: Annotated[Path, typer.Argument(help="A run or model, or an exported model."), A_MODEL],
    images: Annotated[
        list[str],
        typer.Argument(
            help="Image files and folders; into shards also s3://, gs:// and file:// places, "
            "tables of paths, tar shards, and Parquet files with images."
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="A .csv, .jsonl or .parquet file; or a folder or s3:// place for shards, "
            "ending in /. A run into shards that was stopped goes on where it was.",
        ),
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(help="An .html page of where each label was seen (head query2label)."),
    ] = None,
    taxonomy: Annotated[
        Path | None,
        typer.Option(
            help="Which label is a kind of which (child,parent or a|b|c); answers obey it. Models "
            "trained with one have their own."
        ),
    ] = None,
    shares: Annotated[
        bool,
        typer.Option(
            "--shares",
            help="Show too how frequent each label is among these images, if those with a label "
            "look as the held-out ones did.",
        ),
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at once.")] = 64,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    decode: DecodeOption = None,
    engine: Annotated[
        Literal["local", "ray"] | None,
        typer.Option(help="Where shards are scored: on this machine, or on a Ray cluster."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that score shards (1 by default).")
    ] = None,
    decoders: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of --engine ray: so many cores of the cluster, on any node, decode for the "
            "workers, which only compute. Default: each worker decodes on its own node.",
        ),
    ] = None,
    shard_rows: Annotated[
        int | None, typer.Option(min=1, help=f"Images in each shard ({SHARD_ROWS} by default).")
    ] = None,
) -> None:
    """Say which labels images carry, with their probabilities.

    A file that cannot be read is named, the others go on, and the exit status is 1.
    """
    from labelwise.errors import SettingsError
    from labelwise.system.storage import without_options

    if explain is not None and explain.suffix.lower() != ".html":
        raise SettingsError(f"--explain writes a page that ends in .html, got {explain}")
    if out is not None and _is_folder(out):
        if explain is not None:
            raise SettingsError("--explain is for photos on this machine, not for shards")
        if taxonomy is not None:
            raise SettingsError("--taxonomy is for answers in one file, not for shards")
        if shares:
            raise SettingsError("--shares is for photos on this machine, not for shards")
        _predict_shards(
            run, images, out, batch_size, device, decode, engine or "local", workers or 1,
            decoders or 0, shard_rows or SHARD_ROWS,
        )  # fmt: skip
        return
    of_shards = {
        "engine": engine, "workers": workers, "decoders": decoders, "shard-rows": shard_rows
    }  # fmt: skip
    for name, value in of_shards.items():
        if value is not None:
            raise SettingsError(f"--{name} is for shards: give -o a folder that ends in /")
    for place in images:
        if "://" in place:
            raise SettingsError(
                f"{without_options(place)} is scored into shards: give -o a folder ending in /"
            )
    places = [Path(place) for place in images]
    _predict_file(run, places, out, batch_size, device, decode, explain, taxonomy, shares)


def _is_folder(out: str) -> bool:
    return out.endswith("/") or "://" in out or Path(out).is_dir()


def _predict_shards(
    run: Path,
    places: list[str],
    out: str,
    batch_size: int,
    device: str,
    decode: DecodeKind | None,
    engine: str,
    workers: int,
    decoders: int,
    shard_rows: int,
) -> None:
    from labelwise.cli.text import caution, complain, resumable, say
    from labelwise.models.loading import caution_of
    from labelwise.shards import ModelFiles, ScoringTask, predict_shards
    from labelwise.shards.scoring_task import decoders_per_worker
    from labelwise.system.progress import make_watch
    from labelwise.system.storage import without_options

    decoder = chosen_decoder(decode, device)
    _check_model(run)
    reader = cluster_decoding(run, engine, workers, decoder, decoders) if decoders else None
    model = ModelFiles.read(run)
    caution(caution_of(run))
    threads = decoders_per_worker(workers)
    task = ScoringTask(out, model, batch_size, device, threads, decoder, reader)
    engine_of_shards = make_engine(engine, workers, device, decoders)
    with resumable(without_options(out)):
        outcome = predict_shards(
            task, places, engine_of_shards, shard_rows=shard_rows, watch=make_watch()
        )
    if outcome.resumed:
        say(f"{outcome.resumed:,} of {outcome.shards:,} shards were there already")
    good, place = outcome.rows - outcome.failed, without_options(out)
    shards = counted(outcome.shards, "shard")
    say(f"{good:,} of {counted(outcome.rows, 'image')} predicted, in {shards} in {place}")
    if outcome.failed:
        complain(
            f"{outcome.failed:,} of {counted(outcome.rows, 'image')} could not be read; the column "
            "error of their rows says why"
        )
        raise typer.Exit(1)


def _predict_file(
    run: Path,
    images: list[Path],
    out_file: str | None,
    batch_size: int,
    device: str,
    decode: DecodeKind | None,
    explain: Path | None,
    taxonomy: Path | None,
    shares: bool,
) -> None:
    out = None if out_file is None else Path(out_file)
    from labelwise.cli.text import caution, complain, say, show_table

    with _stoppable(out):  # imports take seconds
        from labelwise.cli.writers import check_suffix, writing
        from labelwise.pictures import PictureImages
        from labelwise.system.progress import make_watch

        if out is not None:
            check_suffix(out)
        decoder = chosen_decoder(decode, device)
        answers_alone = explain is None and taxonomy is None and not shares
        graph = _graph(run) if answers_alone and device == "cpu" else None
        if graph is None:
            _check_model(run)
        source = PictureImages(find_photos(images))
        engine = None
        if graph is not None:
            caution(graph.caution)
            names, answers, cautioned = graph.names, graph.score(source), graph.caution is not None
        else:
            engine = _Engine(run, source, batch_size, device, decoder, explain, taxonomy, shares)
            names, answers, cautioned = engine.names, engine.answers(), engine.cautioned
    rows: list[tuple[str, str]] = []
    failed = count = chosen = 0
    watch = make_watch()
    watch.start("predicting", len(source))
    with _stoppable(out), writing(out, names, cautioned) as write, ExitStack() as stack:
        stack.callback(watch.finish)
        for answer in stack.enter_context(closing(answers)):
            write(answer)
            count += 1
            chosen += len(answer.labels)
            if answer.error is not None:
                complain(answer.error)
                failed += 1
            elif len(rows) < ROWS_SHOWN:
                rows.append((answer.id, _short(answer.labels, answer.probs, names)))
            watch.advance(1)
    if rows:
        show_table(("image", "labels"), rows)
    if count - failed > len(rows):
        say(f"... and {count - failed - len(rows):,} more{'' if out else '; write them with -o'}")
    if out is not None:
        say(f"{count - failed:,} of {counted(count, 'image')} predicted, written to {out}")
    if count > failed:
        _say_size(run, chosen / (count - failed))
    if engine is not None and count > failed:
        engine.say_shares()
    if failed:
        complain(f"{failed:,} of {counted(count, 'image')} could not be read")
        raise typer.Exit(1)


def _graph(place: Path) -> "OnnxAnswers | None":
    """Return what answers without torch, None for a model that the engine must run."""
    from labelwise.models.onnx_answers import OnnxAnswers

    return OnnxAnswers.of(place) if place.suffix.lower() == ".onnx" else None


class _Engine:
    """A model, run by the one inference engine, and what was asked for beside its answers."""

    def __init__(
        self,
        run: Path,
        source: "ImageSource",
        batch_size: int,
        device: str,
        decoder: Literal["cpu", "cuda"],
        explain: Path | None,
        taxonomy: Path | None,
        shares: bool,
    ) -> None:
        from labelwise.cli.text import caution
        from labelwise.models import load_model
        from labelwise.taxonomy import Taxonomy

        self.source, self.batch_size, self.decoder = source, batch_size, decoder
        self.predictor = load_model(run, device).fused(len(source))
        caution(self.predictor.caution)
        self.held_out = _held_out(run) if shares else None
        self.logits: list[Tensor] = []  # only where shares are asked for
        if explain is not None:
            _explain(self.predictor, source, explain)
        self.names = self.predictor.space.names
        self.tree: LabelTree | None = None
        if taxonomy is not None:
            given = taxonomy_of(self.predictor.taxonomy, Taxonomy.read(taxonomy))
            self.tree = None if given is None else given.within(self.predictor.space)

    def answers(self) -> Generator["Answer"]:
        """Yield the answers in the order of the photos."""
        from labelwise.models.scoring import obeying, score

        given = self.predictor, self.source
        for scored in score(*given, batch_size=self.batch_size, decode=self.decoder):
            if self.held_out is not None:
                self.logits.append(scored.logits)
            tree, rule = self.tree, self.predictor.rule
            yield from (scored if tree is None else obeying(scored, tree, rule)).answers(
                self.predictor.caution
            )

    @property
    def cautioned(self) -> bool:
        """Whether something must stand beside the model's probabilities."""
        return self.predictor.caution is not None

    def say_shares(self) -> None:
        """Say how frequent each label is among the photos, if that was asked for."""
        if self.held_out is not None:
            _say_shares(self.held_out, self.predictor.link, self.logits)


def _say_size(place: Path, chosen: float) -> None:
    """Say how many labels a photo was given where the run that made the model had far others."""
    if not place.is_dir():
        return
    from labelwise.cli.text import say
    from labelwise.evaluation.evaluation import far_apart
    from labelwise.models.run_folder import RunFolder

    run = RunFolder(place)
    sets = run.evaluation.sets if run.evaluation_path.is_file() else None
    true = None if sets is None else sets.true_size
    if true is not None and far_apart(chosen, true):
        say(
            f"{chosen:.2f} labels per photo, where the photos that judged the model have "
            f"{true:.2f}: these photos differ from those, or the rule does not suit them"
        )


def _held_out(run: Path) -> "Predictions":
    """Return the held-out photos of a run folder, before anything is scored."""
    from labelwise.errors import SettingsError
    from labelwise.scores.shares import held_out_of

    if not run.is_dir():
        raise SettingsError(f"--shares needs the held-out photos of a run; {run} is one file")
    return held_out_of(run)


def _say_shares(held_out: "Predictions", link: "Link | None", logits: "list[Tensor]") -> None:
    """Say how frequent each label is among the photos, with its interval."""
    import torch

    from labelwise.cli.text import say, show_table
    from labelwise.scores.shares import share_shift

    shift = share_shift(held_out, link, torch.cat(logits))
    cells = [
        (one.label, f"{one.before:.1%}", f"{one.now:.1%}", f"{one.low:.1%} to {one.high:.1%}",
         "yes" if one.moved else "")
        for one in shift.shares if one is not None
    ]  # fmt: skip
    say()
    show_table(("label", "held-out", "here", "95% interval", "moved"), cells)
    say("if photos with a label look as the held-out ones did, and only are more or fewer")
    unknown = sum(one is None for one in shift.shares)
    if unknown:
        say(f"left out: {counted(unknown, 'label')} that no held-out photo carries, or all do")


@contextmanager
def _stoppable(out: Path | None) -> Iterator[None]:
    """Say, if Ctrl-C stops the block, that no file was written, and how one can go on."""
    from labelwise.cli.text import stopped

    try:
        yield
    except KeyboardInterrupt:
        if out is None:
            raise
        raise stopped(
            f"stopped; {out} was not written. Shards (-o {out.with_suffix('')}/) are kept and "
            "go on with the same command"
        ) from None


def _explain(scorer: "DeployedModel", source: "ImageSource", path: Path) -> None:
    """Write the page of attention maps; a model without them is refused before anything."""
    from labelwise.cli.text import say
    from labelwise.errors import SettingsError
    from labelwise.models import Predictor
    from labelwise.report.explain import look, write_explanation

    if not isinstance(scorer, Predictor):
        raise SettingsError("an exported file has no attention maps; give the run's folder")
    count = write_explanation(path, look(scorer, source))
    say(f"where each label was seen on {counted(count, 'photo')}: {path}")


def taxonomy_of(own: "Taxonomy | None", given: "Taxonomy | None") -> "Taxonomy | None":
    """Return a model's own taxonomy, or else the given one; two different ones are an error."""
    from labelwise.errors import SettingsError

    if own is not None and given is not None and own != given:
        raise SettingsError(
            "the model was trained with another taxonomy, which its answers obey; leave "
            "--taxonomy out, or train with this one (it is fitted again without training if no "
            "label changes)"
        )
    return own or given


def _check_model(place: Path) -> None:
    """Raise if a place cannot be a model, such as a photo that was named first."""
    from labelwise.errors import SettingsError
    from labelwise.models.loading import is_exported, refuse_program

    refuse_program(place)
    if not place.is_dir() and not is_exported(place):
        what = "a file of another kind" if place.exists() else "not there"
        raise SettingsError(
            f"the model comes first: the folder of a run, or an exported model; {place} is {what}"
        )


def find_photos(places: Sequence[Path]) -> list[Path]:
    """Return the files given, and the images in and below the folders given, in order.

    One file that is not there fails when it is read, as the others go on; if none is, we stop.
    """
    from labelwise.cli.text import complain
    from labelwise.errors import DataError
    from labelwise.pictures.folders import find_images

    if not any(place.exists() for place in places):
        raise DataError(f"there is no file or folder {places[0]}")
    found: list[Path] = []
    for place in places:
        names, notes = find_images(place) if place.is_dir() else ([""], ())
        for note in notes:
            complain(f"{place}: {note}")
        if not names:
            raise DataError(f"there are no images in the folder {place}")
        found += [place / name for name in names]
    return found


def _short(labels: Sequence[str], probs: Sequence[float], names: Sequence[str]) -> str:
    chance = dict(zip(names, probs, strict=True))
    shown = [f"{label} {chance[label]:.2f}" for label in labels[:LABELS_SHOWN]]
    if len(labels) > LABELS_SHOWN:
        shown.append(f"and {len(labels) - LABELS_SHOWN} more")
    return ", ".join(shown) or "none"

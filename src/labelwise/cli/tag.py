"""``labelwise tag``: labels written to side-cars, photos or Immich, and taken out again."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.base.progress import make_watch
from labelwise.base.storage import is_uri, without_options
from labelwise.base.text import counted
from labelwise.cli.arguments import Confidence, DryRun, Undo, WrongAtMost, option
from labelwise.cli.command import app, as_typed, refuse, verb
from labelwise.cli.options import read_secret
from labelwise.cli.text import (
    caution,
    complain,
    next_steps,
    quoted,
    resumable,
    say,
    show_table,
    tell,
)
from labelwise.errors import SettingsError

if TYPE_CHECKING:
    from labelwise.decide import Rule
    from labelwise.photos import Index
    from labelwise.photos.store import Store
    from labelwise.photos.tagging import TagOutcome
    from labelwise.photos.xmp import Keyword

SHOWN = 20


@verb(app, "tag photos.index --xmp --wrong-at-most 0.05", "tag tags.audit --xmp")
def tag(
    folder: Annotated[
        Path,
        typer.Argument(envvar="LABELWISE_INDEX", help="The folder of an index (photos.index)."),
    ] = Path("photos.index"),
    *,
    xmp: Annotated[bool, option("--xmp", help="Write XMP side-cars beside the photos.")] = False,
    embed: Annotated[
        bool, option("--embed", help="Write into JPEG, TIFF and PNG files, through exiftool.")
    ] = False,
    immich: Annotated[
        str | None,
        option(
            "--immich", metavar="ADDRESS", help="Write tags to Immich, such as http://immich:2283."
        ),
    ] = None,
    wrong_at_most: WrongAtMost = None,
    per_label: Annotated[
        bool, option("--per-label", help="Guarantee each label, not all together.")
    ] = False,
    undo: Undo = False,
    dry_run: DryRun = False,
    confidence: Confidence = None,
    adopt: Annotated[
        bool, option("--adopt", help="Also replace keywords that another index wrote.")
    ] = False,
    immich_key_file: Annotated[
        Path | None,
        option("--immich-key-file", help="A file with Immich's API key; or LABELWISE_IMMICH_KEY."),
    ] = None,
) -> None:
    """Write labels as keywords that other photo programs read.

    Keywords are added to dc:subject, lr:hierarchicalSubject and digiKam:TagsList. What is there
    stays, and what is ours is marked, so that --undo takes out exactly that. A side-car that
    nobody changed since gets back every byte.
    Keywords that another index wrote stay too, unless --adopt is given. A new side-car takes over
    the XMP and the keywords inside its photo.

    Photos themselves are written only with --embed, which needs exiftool; --undo gives back the
    bytes they had. With --immich tags go to that server alone; running it again takes away what
    the model no longer gives.

    The folder of an audit writes the tags that it kept.
    """
    from labelwise.answers.audit_session import RECEIPT
    from labelwise.photos import Index
    from labelwise.photos.store import Store
    from labelwise.photos.tagging import require_exiftool, tags_of, tags_of_audit

    if immich is not None:
        refuse("--immich writes to a server alone", "xmp", "embed", "adopt")
    elif xmp + embed != 1 and not (undo and not xmp):
        raise SettingsError(
            "say where the labels go: --xmp writes side-cars beside the photos, --embed writes "
            "into the photos, --immich ADDRESS to a server; --undo takes out all that the first "
            "two wrote, with one of them what that wrote"
        )
    else:
        refuse("it is the key of a server: say --immich ADDRESS too", "immich_key_file")
    if embed:
        refuse("it is for side-cars: say --xmp, and not --embed", "adopt")
    if undo:
        refuse("--undo takes out what we wrote", "wrong_at_most", "adopt")
    if wrong_at_most is None:
        refuse("it is for a guarantee: say --wrong-at-most 0.05 too", "confidence", "per_label")
    if embed and not undo:
        require_exiftool()
    promised = Guaranteed(wrong_at_most, 0.95 if confidence is None else confidence, per_label)
    writing = Writing(xmp, embed, adopt, dry_run)
    if (folder / RECEIPT).is_file():
        refuse("an audit writes side-cars or photos", "immich", "wrong_at_most")
        written = folder / "written"
        is_new = not (written / "photos.sqlite").is_file()
        made = Store.create(written, ()) if is_new else Store(written, ())
        with resumable(folder), made as store:
            if undo:
                writing.take_out(store)
            else:
                tags = tags_of_audit(folder)
                writing.write(store, iter(tags), len(tags))
    elif immich is not None:
        _tag_immich(folder, immich, immich_key_file, promised, undo=undo, dry_run=dry_run)
        return
    else:
        with resumable(folder), Index(folder) as index:
            _refuse_bucket(index, folder)
            if undo:
                writing.take_out(index.store)
            else:
                index.require_photos()
                found = tags_of(index, promised.rule(index))
                by_path = ((index.store.paths_of([row])[row], words) for row, words in found)
                writing.write(index.store, by_path, index.photos)
    _show_counts(writing.labels)
    outcomes = writing.outcomes
    for outcome in [outcome for outcome in outcomes if outcome.state == "left alone"][:SHOWN]:
        complain(f"{outcome.path} is left alone: {outcome.reason}")
    counts = Counter(outcome.state for outcome in outcomes)
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items())) or "nothing"
    what, where = ("photos", "--embed") if embed else ("side-cars", "--xmp")
    say(f"{_unwritten(dry_run)}{'side-cars and photos' if undo else what}: {states}")
    if counts["left alone"]:
        raise typer.Exit(1)
    if undo:
        next_steps(f"tag {quoted(folder)} {'--undo' if dry_run else where}")
    else:
        next_steps(f"tag {quoted(folder)} {where if dry_run else '--undo'}")


@dataclass(frozen=True)
class Guaranteed:
    """The share of tags that may be wrong, None for the rule of the model; and how sure it is."""

    wrong_at_most: float | None
    confidence: float
    per_label: bool

    def rule(self, index: "Index") -> "Rule | None":
        """Return the rule by which photos of an index get labels, and say what it guarantees."""
        from labelwise.photos import model_changed
        from labelwise.photos.tagging import promised_rule

        caution(index.spec.caution, model_changed(index))
        if self.wrong_at_most is None:
            return None
        level = self.confidence
        made = promised_rule(index, self.wrong_at_most, level, per_label=self.per_label)
        tell(*map(str, made.promises), *made.refused)
        return made.rule


@dataclass
class Writing:
    """Where keywords are written, and what came of it."""

    xmp: bool
    embed: bool
    adopt: bool
    dry_run: bool
    labels: Counter[str] = field(default_factory=Counter)
    outcomes: "list[TagOutcome]" = field(default_factory=list)

    def take_out(self, store: "Store") -> None:
        """Take out what we wrote."""
        from labelwise.photos.tagging import WrittenFiles, undo_embedded, undo_sidecar

        sidecars = [] if self.embed else WrittenFiles(store, "sidecars").paths()
        photos = [] if self.xmp else WrittenFiles(store, "embedded").paths()
        self.outcomes += [undo_sidecar(store, path, dry_run=self.dry_run) for path in sidecars]
        self.outcomes += [undo_embedded(store, path, dry_run=self.dry_run) for path in photos]

    def write(
        self, store: "Store", tags: "Iterator[tuple[list[str], list[Keyword]]]", total: int
    ) -> None:
        """Write the keywords of photos, beside all places at which they lie."""
        from labelwise.photos.metadata import sidecar_of
        from labelwise.photos.tagging import embed_tags, raw_partners, write_sidecar

        watch, dry = make_watch(), self.dry_run
        watch.start("tagging", total)
        for photos, keywords in tags:
            self.labels.update(keyword.label for keyword in keywords)
            for photo in photos:
                if self.embed:
                    self.outcomes.append(embed_tags(store, photo, keywords, dry_run=dry))
                    continue
                shots = [*raw_partners(photo), photo]  # a side-car of both is the photo's
                for sidecar, shot in {sidecar_of(shot): shot for shot in shots}.items():
                    outcome = write_sidecar(
                        store, sidecar, keywords, photo=shot, adopt=self.adopt, dry_run=dry
                    )
                    self.outcomes.append(outcome)
            watch.advance(1)
        watch.finish()


def _refuse_bucket(index: "Index", folder: Path) -> None:

    bucket = next((root for root in index.store.roots().values() if is_uri(root)), None)
    if bucket is not None:
        raise SettingsError(
            f"side-cars are written beside photos on a disk, and {folder} holds photos of "
            f"{without_options(bucket)}; index the photos on a disk apart and tag those"
        )


def _tag_immich(
    folder: Path,
    address: str,
    key_file: Path | None,
    promised: Guaranteed,
    *,
    undo: bool,
    dry_run: bool,
) -> None:
    from labelwise.contrib.immich import Immich, remove_tags, write_tags
    from labelwise.photos import Index

    key = read_secret(key_file, "LABELWISE_IMMICH_KEY", "the key of Immich", "--immich-key-file")
    if key is None:
        mend = "write it into a file and give --immich-key-file FILE"
        raise SettingsError(f"Immich needs an API key (Account Settings, API Keys): {mend}")
    server = Immich(address, key)
    if undo:
        removed = remove_tags(server, dry_run=dry_run)
        say(f"{_unwritten(dry_run)}Immich: {counted(removed, 'tag')} removed")
        return
    with Index(folder) as index:
        rule = promised.rule(index)
        added, taken, missing = write_tags(index, server, rule, dry_run=dry_run)
    _show_counts(added)
    tags = counted(sum(added.values()), "tag")
    say(f"{_unwritten(dry_run)}Immich: {tags} given, {sum(taken.values()):,} taken away")
    if missing:
        say(f"{counted(missing, 'photo')} with labels are not among its uploaded photos")
    again = as_typed("immich_key_file") + " --undo" * (not dry_run)
    next_steps(f"tag {quoted(folder)} --immich {quoted(address)}{again}")


def _unwritten(dry_run: bool) -> str:
    return "dry run, nothing was written; without --dry-run, " if dry_run else ""


def _show_counts(photos: Mapping[str, int]) -> None:
    if photos:
        most = Counter(photos).most_common(SHOWN)
        show_table(("label", "photos"), [(name, f"{count:,}") for name, count in most])
        if len(photos) > SHOWN:
            say(f"and {counted(len(photos) - SHOWN, 'more label')}")

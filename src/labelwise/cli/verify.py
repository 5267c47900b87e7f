"""``labelwise verify``: were promises kept? Receipts of an index, or promises of a run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from labelwise.decide import Check, Promise
    from labelwise.photos import VerifiedLists


def verify(
    place: Annotated[
        Path, typer.Argument(metavar="INDEX|RUN", help="The folder of an index, or of a run.")
    ],
    answers: Annotated[
        Path | None,
        typer.Option(
            help="Of an index: a CSV of path, answer (yes, no, unsure) and, where lists of several "
            "queries were promised, query. Of a run: labelled photos, as for evaluate --data."
        ),
    ] = None,
    ask: Annotated[
        int | None,
        typer.Option(
            min=1, help="Of an index: write the first so many photos of each list to --output."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The table that --ask writes.")
    ] = None,
    receipts: Annotated[
        bool, typer.Option("--receipts", help="Of an index: print its receipts as JSON lines.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail where a single promise is broken, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Check promises again, now that answers are known.

    Of an index: each list that search or check promised has a receipt, and so have promised tags.
    What people said in the
    index counts, and the answers of a table. `--ask 30 -o questions.csv` writes which photos to
    answer; only photos in that order are a random sample. Of a run: its promises, on its test
    photos or on --answers.

    Exit status 1 where more promises are broken than may be: for lists, if promises that hold
    would break so many with a chance of at most 5 %; for tags and for a run, if any is broken.
    """
    from labelwise.errors import SettingsError

    if (ask is None) != (output is None):
        raise SettingsError("--ask N writes a table: give both --ask N and --output FILE")
    if sum((ask is not None, receipts, answers is not None)) > 1:
        raise SettingsError("--ask, --receipts and --answers do different things; give one")
    if (ask is not None or receipts) and (strict or as_json):
        raise SettingsError("--strict and --json are about verdicts; leave them out here")
    if (place / "index.json").is_file():
        broken = _of_index(place, answers, ask, output, receipts, strict, as_json)
    else:
        refused = {"--ask": ask is not None, "--receipts": receipts, "--strict": strict}
        for name, given in refused.items():
            if given:
                raise SettingsError(f"{place} is not an index, so {name} does not apply")
        broken = _of_run(place, answers, as_json)
    if broken:
        raise typer.Exit(1)


def _of_index(
    folder: Path,
    answers: Path | None,
    ask: int | None,
    output: Path | None,
    receipts: bool,
    strict: bool,
    as_json: bool,
) -> bool:
    """Show how the lists of an index stand; return whether their promises are broken."""
    from labelwise.cli.text import say
    from labelwise.photos import Index, read_list_answers, receipts_of, verify_lists
    from labelwise.photos.verifying import write_list_questions
    from labelwise.system.text import counted

    with Index(folder) as index:
        if receipts:
            for one in receipts_of(index):
                say(json.dumps(one.spec()))
            return False
        if ask is not None and output is not None:
            written = write_list_questions(index, output, ask)
            say(f"wrote {output}: {counted(written, 'photo')} to answer with yes, no or unsure")
            return False
        told = None if answers is None else read_list_answers(index, answers)
        verified = verify_lists(index, told)
    _show_lists(verified, as_json)
    broken = any(one.verdict == "broken" for one in verified.by_number.values())
    tags = any(verdict.verdict == "broken" for _, verdict in verified.tags)
    return verified.together.verdict == "broken" or tags or (strict and broken)


def _show_lists(verified: "VerifiedLists", as_json: bool) -> None:
    from labelwise.cli.text import say
    from labelwise.photos.tag_receipts import labels_of_tags, tags_title

    if as_json:
        lists = [
            {
                "receipt": receipt.number,
                "query": receipt.query,
                "kind": receipt.promise.kind,
                "verdict": verdict.verdict,
                "wrong_at_least": verdict.least,
                "wrong_at_most": verdict.most,
                "listed": receipt.promise.listed,
                "drawn": verdict.answers.drawn,
                "text": str(verdict),
            }
            for receipt, verdict in verified.lists
        ]
        together = {"verdict": verified.together.verdict, "text": str(verified.together)}
        tags = [
            {
                "receipt": receipt.number,
                "labels": labels_of_tags(receipt.query),
                "verdict": verdict.verdict,
                "tags": receipt.promise.listed,
                "text": str(verdict),
            }
            for receipt, verdict in verified.tags
        ]
        say(json.dumps({"lists": lists, "together": together, "tags": tags}))
        return
    for receipt, kept in verified.tags:
        say(f"receipt {receipt.number}, {tags_title(receipt.query)}: {kept}")
    for receipt, verdict in verified.lists:
        say(f"receipt {receipt.number}, {receipt.query} ({receipt.promise.kind}): {verdict}")
    if verified.lists or not verified.tags:
        say(str(verified.together))


def _of_run(folder: Path, answers: Path | None, as_json: bool) -> bool:
    """Show how the promises of a run stand; return whether one is broken."""
    from labelwise.cli.text import say

    pairs = _checked_run(folder, answers)
    if as_json:
        say(json.dumps([{"verdict": c.verdict, "text": str(c), **p.spec()} for c, p in pairs]))
    else:
        for check, promise in pairs:
            say(f"{check}; it was: {promise}")
        told = [check for check, _ in pairs if check.verdict != "cannot tell"]
        kept = sum(check.verdict == "kept" for check in told)
        say(f"kept in {kept} of {len(told)}; {len(pairs) - len(told)} cannot be told")
    return any(check.verdict == "broken" for check, _ in pairs)


def _checked_run(folder: Path, answers: Path | None) -> "list[tuple[Check, Promise]]":
    from labelwise.cli.text import complain
    from labelwise.data.load import load_for_labels
    from labelwise.errors import DataError
    from labelwise.models.run_folder import RunFolder
    from labelwise.scores import read_run, score_data

    run = RunFolder(folder)
    if not run.spec.promises:
        raise DataError(
            f"{folder} was made without a promise; labelwise decide --promise makes one"
        )
    if answers is None:
        checks = read_run(folder, "test").checks() if "test" in run.splits else []
        if not checks:
            raise DataError(
                f"{folder} has no test photos that fitted nothing; give labelled photos with "
                "--answers"
            )
        return checks
    table = load_for_labels(str(answers), run.spec.labels, check_files=True)
    scores, notes = score_data(folder, table)
    for note in notes:
        complain(note)
    return scores.checks()

"""The command ``labelwise``: verbs are mounted here and import what they need when they run.

Exit status: 0 done, 1 one clear sentence said why not, 2 wrong usage, 130 stopped by Ctrl-C.
"""

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TextIO

import typer
from typer.core import TyperGroup

from labelwise import __version__
from labelwise.cli import (
    audit,
    calibrate,
    compare,
    count,
    data,
    data_labels,
    data_review,
    evaluate,
    export,
    index,
    label,
    papers,
    predict,
    report,
    search,
    serve,
    tag,
    train,
)
from labelwise.cli.command import mount, sentence_of
from labelwise.cli.text import complain, stopped
from labelwise.errors import LabelwiseError
from labelwise.system.allocator import keep_freed_memory

Arguments = list[str]
Alias = Callable[[Arguments], Arguments]


def _flags(args: Arguments, renamed: Mapping[str, str]) -> Arguments:
    """Return arguments with new names of options (``cut="at-least"``); after ``--`` all stays."""
    end = args.index("--") if "--" in args else len(args)
    new = {f"--{old.replace('_', '-')}": f"--{name}" for old, name in renamed.items()}
    parts = [word.partition("=") for word in args[:end]]
    named = [f"{new.get(flag, flag)}{equals}{value}" for flag, equals, value in parts]
    return [*named, *args[end:]]


def _to(*words: str, default: Arguments | None = None, **renamed: str) -> Alias:
    """Return what makes a new command line of an old one.

    ``default`` is an option with the value that the old name had unless it was given.
    """

    def translated(args: Arguments) -> Arguments:
        args = _flags(args, renamed)
        flags = {word.partition("=")[0] for word in args}
        more = [] if default is None or default[0] in flags else default
        return [*words, *args, *more]

    return translated


def _with_table(verb: str, flag: str, **renamed: str) -> Alias:
    """The same where the second argument became an option."""
    return lambda args: [verb, *args[:1], *([flag] if args[1:] else []), *_flags(args[1:], renamed)]


def _reproduce(args: Arguments) -> Arguments:
    if "--list" in args:
        return ["papers", "list", *(word for word in args if word != "--list")]
    return [
        "papers",
        "run",
        *_flags(args, {"data": "source", "scores": "judge", "checkpoint": "judge"}),
    ]


ROOT_ALIASES: dict[str, Alias] = {
    "start": _to("train", scorer="model"),
    "apply": _to("predict"),
    "mcp": _to("serve", "--mcp", folder="tag-folder"),
    "decide": _to(
        "calibrate",
        default=["--calibrator", "none"],
        calibrate="calibrator",
        promise="guarantee",
        promise_share="guarantee-share",
    ),
    "check": _to("audit", cut="at-least", output="out"),
    "verify": _to("audit", output="out"),
    "estimate": _to("count", answers="ask", answers_from="answers", method="count-by"),
    "review": _to("label", "next", by="order", count="top"),
    "dossier": _to("report", "--format", "dossier"),
    "reproduce": _reproduce,
    "methods": _to("papers", "methods"),
    "aggregate": _to("data", "convert", how="pool"),
}
ROOT_RENAMED = {
    "train": {"calibrate": "calibrator"},
    "calibrate": {"method": "calibrator"},
    "predict": {"shares": "frequencies"},
    "label": {"export": "out"},
    "serve": {"model": "also"},
}
DATA_ALIASES: dict[str, Alias] = {
    "suspects": _to("review", kind="find", false_at_most="wrong-at-most", most="top", page="html"),
    "next": _to("review", "--find", "next", budget="top", by="order", page="html"),
    "repair": _with_table("review", "--apply", log="changes", accept_promised="accept-guaranteed"),
    "near-copies": _to("group"),
    "bursts": _to("group", default=["--gap", "60"], time="time-column", camera="camera-column"),
    "keywords": _to("import", least="min-count", taxonomy="taxonomy-out"),
    "crops": _to("import", least="at-least", root="data"),
    "answers": _with_table("convert", "--predictions"),
    "export": _to("convert"),
    "clashes": _to("rules"),
}
DATA_RENAMED = {"votes": {"by": "vote-by", "photos": "data", "least": "min-count"}}


class VerbGroup(TyperGroup):
    """Verbs in groups; names from before 0.3 still work, with a note."""

    aliases: Mapping[str, Alias] = {}
    renamed: Mapping[str, Mapping[str, str]] = {}
    groups: ClassVar[Mapping[str, Sequence[str]]] = {}
    examples: tuple[str, ...] = ()

    def resolve_command(self, ctx: Any, args: Arguments) -> Any:
        """Find the verb; translate a name, or options, that it had before 0.3."""
        name = args[0] if args else ""
        if name in self.aliases:
            args = self.aliases[name](args[1:])
        elif name == "serve" and "--label" in args:
            photos = [word for word in args[1:] if word != "--label"]
            args = ["label", "--page", *_flags(photos, {"answers": "out"})]
        elif name in self.renamed:
            args = [name, *_flags(args[1:], self.renamed[name])]
        if args and args[0] != name:
            path = ctx.command_path
            also = f" {args[1]}" if args[0] in ("papers", "data", "label") else ""
            new = f"{path} {args[0]}{also if path == 'labelwise' else ''}"
            complain(f"`{path} {name}` is now `{new}`; the old name works until 0.4")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write a sentence and the verbs by what they are for."""
        formatter.write(f"{sentence_of(self.help)}\n")
        for title, names in self.groups.items():
            formatter.write(f"{title}\n")
            for name in names:
                command = self.get_command(ctx, name)
                formatter.write(f"  {name:<10}{sentence_of(command.help if command else '')}\n")
        for example in self.examples:
            formatter.write(f"  labelwise {example}\n")


class Root(VerbGroup):
    """All verbs."""

    aliases, renamed = ROOT_ALIASES, ROOT_RENAMED
    groups: ClassVar = {
        "start here": ("demo", "train", "predict"),
        "your photos": ("index", "search", "count", "audit", "label", "tag", "serve"),
        "your scores": ("evaluate", "calibrate", "report", "export"),
        "tables": ("data",),
        "research": ("compare", "papers"),
    }


class Data(VerbGroup):
    """Verbs about label tables."""

    aliases, renamed = DATA_ALIASES, DATA_RENAMED
    groups: ClassVar = {
        "look": ("describe", "review", "rules"),
        "change": ("split", "group", "observe"),
        "read and write": ("import", "votes", "convert"),
    }
    examples = ("data describe photos.csv", "data split photos.csv -o split.csv")


class Papers(VerbGroup):
    """Verbs about the papers."""

    groups: ClassVar = {"papers": ("list", "run", "methods")}
    examples = ("papers list", "papers run 000-table2 --quick")


def _application(cls: type[VerbGroup], name: str, help: str, **more: Any) -> typer.Typer:
    return typer.Typer(
        name=name,
        cls=cls,
        help=help,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        **more,
    )


app = _application(
    Root, "labelwise", "Labels for images that carry none, one or many, with honest probabilities."
)
data_app = _application(
    Data, "data", "Describe, split, review and convert label tables.", add_completion=False
)
papers_app = _application(
    Papers, "papers", "Run the papers' methods, tables and figures.", add_completion=False
)
for function in (
    *(train.demo, train.train, predict.predict, index.index, search.search, count.count),
    *(audit.audit, label.label, tag.tag, serve.serve, evaluate.evaluate, calibrate.calibrate),
    *(report.report, export.export, compare.compare),
):
    mount(app, function, function.__name__)
for function in (
    *(data.describe_table, data.split_table, data.convert_table, data_review.review_table),
    *(data.group_table, data_labels.votes_table, data_labels.import_table, data.observe_table),
    data_labels.rules_table,
):
    mount(data_app, function, function.__name__.removesuffix("_table"))
for function in (papers.list_tables, papers.run, papers.methods):
    mount(papers_app, function, function.__name__.removesuffix("_tables"))
app.add_typer(data_app)
app.add_typer(papers_app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"labelwise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Labels for images that carry none, one or many, with honest probabilities."""


def main() -> None:
    """Run the command line; turn errors into one sentence and an exit status."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if not debug:
        warnings.showwarning = _note
    keep_freed_memory()
    try:
        app(arguments, prog_name="labelwise")
    except SystemExit as end:
        if isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt):
            stopped("stopped")  # typer made it an exit, and no verb could say more
        raise
    except Exception as error:
        if debug:
            raise
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:  # the first process speaks for all
            complain(_sentence(error))
        sys.exit(1)


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning as one line without a source path; those for programmers not at all."""
    if category is UserWarning:
        complain(str(message))


EXTRAS = {
    **dict.fromkeys(("torch", "torchvision", "timm", "safetensors"), "train"),
    **dict.fromkeys(("fastapi", "starlette", "uvicorn"), "serve"),
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "onnx"),
    "ray": "ray",
    "mcp": "mcp",
}  # which extra brings a package


def _sentence(error: Exception) -> str:
    """Say what went wrong; only what no input or machine can cause is called a bug."""
    if isinstance(error, LabelwiseError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is not None:
            return f"This needs labelwise[{extra}]: pip install 'labelwise[{extra}]'"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory; a smaller batch_size or image_size needs less"
    return f"{type(error).__name__}: {error}; this should not happen, --debug shows where it did"

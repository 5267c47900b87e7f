"""How typed functions become verbs: groups, help pages, and the files that a verb may write.

The module of a verb imports what computes in the bodies of its functions alone: until a verb is
run, nothing that takes long is imported.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from labelwise.base.files import require_room
from labelwise.base.storage import is_uri
from labelwise.cli.text import quoted
from labelwise.errors import SettingsError

Part = Literal["model", "results", "all"]  # of a run
Function = TypeVar("Function", bound=Callable[..., None])
WRITTEN = {"out", "html", "csv", "plot", "report", "explain", "taxonomy_out"}  # name files to write
CALL: ContextVar[typer.Context] = ContextVar("call")  # the call of a verb that is under way


class VerbGroup(TyperGroup):
    """Verbs in groups."""

    groups: Mapping[str, Sequence[str]]
    examples: Sequence[str]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(f"{sentence_of(self.help)}\n")
        for title, names in self.groups.items():
            formatter.write(f"{title}\n")
            for name in names:
                command = self.get_command(ctx, name)
                formatter.write(f"  {name:<10}{sentence_of(command.help if command else '')}\n")
        for example in self.examples:
            formatter.write(f"  labelwise {example}\n")


def _group(
    name: str, help: str, groups: Mapping[str, Sequence[str]], *examples: str
) -> typer.Typer:
    return typer.Typer(
        name=name,
        cls=type("Verbs", (VerbGroup,), {"groups": groups, "examples": examples}),
        help=help,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        add_completion=name == "labelwise",
    )


app = _group(
    "labelwise",
    "Labels for images that carry none, one or many, with honest probabilities.",
    {
        "start here": ("demo", "train", "predict"),
        "your photos": ("index", "search", "count", "audit", "label", "tag", "serve"),
        "your scores": ("evaluate", "calibrate", "report", "export"),
        "tables": ("data",),
        "research": ("compare", "papers"),
    },
)
data_app = _group(
    "data",
    "Describe, split, review and convert label tables.",
    {
        "look": ("describe", "review", "rules"),
        "change": ("split", "group", "observe"),
        "read and write": ("import", "votes", "convert"),
    },
    *("data describe photos.csv", "data split photos.csv -o split.csv"),
)
papers_app = _group(
    "papers",
    "Run the papers' methods, tables and figures.",
    {"papers": ("list", "run", "methods")},
    *("papers list", "papers run 000-table2 --quick"),
)


def verb(
    group: typer.Typer,
    *examples: str,
    name: str | None = None,
    more: str = "",
    uri_out: bool = False,
    dashes: bool = False,
    fetch: Mapping[str, Part] | None = None,
) -> Callable[[Function], Function]:
    """Add a function to a group of verbs; its docstring is the help page.

    Args:
        group: the verbs it is one of.
        examples: the two command lines of its help page.
        name: the verb, if it is not the name of the function.
        more: the first of the options that are shown by ``--help-all`` alone.
        uri_out: it also writes to buckets.
        dashes: words such as ``-beach``, which are not options, are arguments.
        fetch: arguments whose run is copied here from a bucket, and which part of it.
    """

    def mount(function: Function) -> Function:
        parameters = list(signature(function).parameters.values())
        names = [parameter.name for parameter in parameters]
        writes = [name for name in names if name in WRITTEN]
        hidden = names[names.index(more) :] if more else []
        parameters = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters]
        own = {"overwrite": _OVERWRITE} if writes else {}
        for key, kind in (own | {"help_all": _HELP_ALL, "_call": typer.Context}).items():
            parameters.append(
                Parameter(key, Parameter.KEYWORD_ONLY, default=False, annotation=kind)
            )

        def run(_call: typer.Context, help_all: bool, **values: object) -> None:
            CALL.set(_call)
            values.pop("overwrite", None)
            for key, value in values.items():
                if key != "out" or not uri_out:
                    values[key] = _local(key, value, (fetch or {}).get(key))
            for key in writes:
                if values[key] is not None and not is_uri(str(values[key])):
                    refuse_overwriting(Path(str(values[key])), is_log=bool(values.get("page")))
                    require_room(Path(str(values[key])))
            function(**values)

        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        facts = {"examples": examples, "more": {*hidden, "overwrite"}, "dashes": dashes}
        title = name or function.__name__
        group.command(title, cls=type("Verb", (Verb,), facts), help=function.__doc__)(run)
        return function

    return mount


def _local(name: str, value: object, part: Part | None) -> object:
    """Return a value whose run was fetched from a bucket; stop at other URIs of local paths."""
    for item in value if isinstance(value, list) else [value]:
        uri = None
        if isinstance(item, Path):
            first, *rest = item.parts or ("",)  # "s3://bucket/run" is the folder "s3:" of this disk
            uri = "//".join((first, "/".join(rest))) if rest and first[-1] == ":" else None
        elif isinstance(item, str) and "://" in item and name == "out":
            uri = item
        if uri is not None and part is not None:
            from labelwise.models.run_folder import fetched_run

            return fetched_run(uri, part)
        if uri is not None:
            raise SettingsError(
                f"{name} must be on a local or mounted disk, got {uri}; copy it, or mount the store"
            )
    return value


def flag_of(name: str) -> str:
    """Return how an option of the verb under way is typed."""
    flags = {param.name: param.opts[0] for param in CALL.get().command.params}
    return str(flags[name])


def typed(*names: str) -> list[str]:
    """Return the flags of those of these options that were typed, not told by the environment."""
    sources = ((flag_of(name), CALL.get().get_parameter_source(name)) for name in names)
    return [flag for flag, source in sources if source and source.name == "COMMANDLINE"]


def refuse(reason: str, *names: str) -> None:
    """Stop if one of these options, which mean nothing here, was typed."""
    for flag in typed(*names):
        raise SettingsError(f"{flag} does not apply: {reason}; leave it out")


def as_typed(*names: str) -> str:
    """Return those of these options that were typed, to be typed again; with a blank before."""
    words = ""
    for name in names:
        for flag in typed(name):
            value = CALL.get().params[name]
            for one in value if isinstance(value, (list, tuple)) else [value]:
                words += f" {flag}" if one is True else f" {flag} {quoted(one)}"
    return words


OURS = {  # files by which a folder is known to be labelwise's own, and what they say
    "_manifest.jsonl": b'"shard"',
    "answers.jsonl": b'"answer',
    "audit.html": b"Written by labelwise",
    "comparison.html": b"Written by labelwise",
    "comparison.json": b'"figures"',
    "crops.csv": b"path,",
    "dossier.html": b"Written by labelwise",
    "dossier.json": b'"disclaimer"',
    "evaluation.json": b'"zero_label_rows"',
    "index.json": b'"held_out"',
    "link.json": b'"format"',
    "metrics.jsonl": b'"step"',
    "model.json": b'"labelwise"',
    "receipt.json": b'"format"',
    "report.html": b"Written by labelwise",
    "settings.yaml": b"data_options:",
    "survey.json": b'"command"',
    "table.md": b"|",
    "thresholds.json": b'"format"',
}


def refuse_overwriting(path: Path, *, is_log: bool = False) -> None:
    """Stop before something is overwritten that labelwise may not have made.

    A file is never replaced unasked. A folder must be empty, hold folders alone, or hold a file
    that says to be labelwise's own, and none that only has its name; a log of answers must lie
    beside its table.
    """
    if CALL.get().params.get("overwrite"):
        return
    if path.is_dir():
        files = sorted(entry.name for entry in path.iterdir() if entry.is_file())
        files = [name for name in files if not name.startswith((".", "part-"))]
        named = [name for name in files if name in OURS]
        contents = {name: (path / name).read_bytes() for name in named}
        # an empty file, such as the journal of a run that was killed early, holds nothing to lose
        foreign = [name for name, held in contents.items() if held and OURS[name] not in held]
        if foreign or (files and not named):
            raise SettingsError(
                f"{path} holds files that labelwise did not make, such as "
                f"{(foreign or files)[0]!r}; choose another folder, or say --overwrite"
            )
    elif path.is_file() and not (is_log and path.with_suffix(".jsonl").is_file()):
        raise SettingsError(
            f"{path} exists and would be overwritten; choose another name, or say --overwrite"
        )


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta["all"] = True
        print(context.get_help())
        raise typer.Exit


_HELP_ALL = Annotated[
    bool,
    typer.Option("--help-all", is_eager=True, callback=_show_all, hidden=True, help="Show all."),
]
_OVERWRITE = Annotated[
    bool,
    typer.Option("--overwrite", envvar="LABELWISE_OVERWRITE", help="Replace files that exist."),
]


def sentence_of(text: str | None) -> str:
    """Return the first sentence of a help page."""
    return " ".join(cleandoc(text or "").split("\n\n")[0].split())


class Verb(TyperCommand):
    """A verb whose help is one sentence, two examples and its main options."""

    examples: Sequence[str]
    more: set[str]
    dashes: bool

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``-beach`` as an argument where the verb does: it is written ``!beach`` then."""
        if self.dashes:
            params = self.get_params(ctx)
            flags = {flag for param in params for flag in (*param.opts, *param.secondary_opts)}
            args = [
                f"!{word[1:]}" if re.match(r"-[^-]", word) and word[:2] not in flags else word
                for word in args
            ]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        everything = ctx.meta.get("all", False)
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        paragraphs = cleandoc(self.help or "").split("\n\n")
        for text in paragraphs if everything else paragraphs[:1]:
            formatter.write_text(" ".join(text.split()))
            formatter.write_paragraph()
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"  labelwise {example}\n")
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], "More": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and param.name != "help":
                is_argument = param.param_type_name == "argument"
                title = "More" if param.name in self.more else "Options"
                groups["Arguments" if is_argument else title].append(record)
        more = groups.pop("More")
        if everything:
            groups["More options"] = more
        for title, lines in groups.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
        if more and not everything:
            formatter.write_paragraph()
            formatter.write(f"{len(more)} more options: {ctx.command_path} --help-all\n")

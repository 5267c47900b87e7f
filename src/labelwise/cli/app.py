"""The command ``labelwise``: verbs are mounted here and imported when they run.

Exit status: 0 done, 1 one clear sentence said why not, 2 wrong usage, 130 stopped by Ctrl-C.
"""

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from labelwise import __version__
from labelwise.base.allocator import keep_freed_memory
from labelwise.cli.command import VERBS, mount, sentence_of
from labelwise.cli.options import declared
from labelwise.cli.text import complain, stopped
from labelwise.errors import LabelwiseError

ALIASES = declared("aliases.toml")


def _translated(
    args: list[str],
    to: str,
    renamed: Mapping[str, str] | None = None,
    default: Sequence[str] = (),
    second: str = "",
) -> list[str]:
    """Return the new command line of an old one; after ``--`` no option gets a new name."""
    end = args.index("--") if "--" in args else len(args)
    parts = (word.partition("=") for word in args[:end])
    new = {f"--{old}": f"--{name}" for old, name in (renamed or {}).items()}
    args[:end] = [f"{new.get(flag, flag)}{equals}{value}" for flag, equals, value in parts]
    if second and args[1:]:
        args.insert(1, second)
    if {word.partition("=")[0] for word in args} & set(default[:1]):
        default = ()
    return [*to.split(), *args, *default]


class VerbGroup(TyperGroup):
    """Verbs in groups; names from before 0.3 still work, with a note."""

    groups: Mapping[str, Sequence[str]]
    examples: Sequence[str]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name == "serve" and "--label" in args:
            photos = [word for word in args[1:] if word != "--label"]
            args = _translated(photos, "label --page", {"answers": "out"})
        elif name == "reproduce" and "--list" in args:
            args = ["papers", "list", *(word for word in args[1:] if word != "--list")]
        elif name in ALIASES.get(self.name or "", {}):
            args = _translated(args[1:], **ALIASES[self.name or ""][name])
        if args and args[0] != name:
            path, words = ctx.command_path, 1 + (args[0] in ("papers", "data", "label"))
            new = " ".join((path, *args[: words if path == "labelwise" else 1]))
            complain(f"`{path} {name}` is now `{new}`; the old name works until 0.4")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(f"{sentence_of(self.help)}\n")
        for title, names in self.groups.items():
            formatter.write(f"{title}\n")
            for name in names:
                command = self.get_command(ctx, name)
                formatter.write(f"  {name:<10}{sentence_of(command.help if command else '')}\n")
        for example in self.examples:
            formatter.write(f"  labelwise {example}\n")


def _application(
    name: str, help: str, groups: Mapping[str, Sequence[str]], *examples: str
) -> typer.Typer:
    application = typer.Typer(
        name=name,
        cls=type("Verbs", (VerbGroup,), {"groups": groups, "examples": examples}),
        help=help,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        add_completion=name == "labelwise",
    )
    for path in VERBS:
        if path.rpartition(" ")[0] == name.removeprefix("labelwise"):
            mount(application, path)
    return application


app = _application(
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
data_app = _application(
    "data",
    "Describe, split, review and convert label tables.",
    {
        "look": ("describe", "review", "rules"),
        "change": ("split", "group", "observe"),
        "read and write": ("import", "votes", "convert"),
    },
    *("data describe photos.csv", "data split photos.csv -o split.csv"),
)
papers_app = _application(
    "papers",
    "Run the papers' methods, tables and figures.",
    {"papers": ("list", "run", "methods")},
    *("papers list", "papers run 000-table2 --quick"),
)
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


def _note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Show a warning as one line without a source path; those for programmers not at all."""
    if category is UserWarning:
        complain(str(message))


EXTRAS = {
    **dict.fromkeys(("torch", "torchvision", "timm", "safetensors"), "train"),
    **dict.fromkeys(("fastapi", "starlette", "uvicorn"), "serve"),
    "onnxscript": "onnx",
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
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory; a smaller batch_size or image_size needs less"
    return f"{type(error).__name__}: {error}; this should not happen, --debug shows where it did"

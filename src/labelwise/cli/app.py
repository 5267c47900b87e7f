"""The command ``labelwise``: verbs are mounted here and import what they need when they run.

Exit status: 0 done, 1 one clear sentence said why not, 2 wrong usage, 130 stopped by Ctrl-C.
"""

import os
import sys
import warnings
from typing import Annotated, TextIO

import typer

from labelwise import __version__
from labelwise.cli import (
    aggregate,
    apply,
    calibrate,
    check,
    compare,
    data,
    decide,
    demo,
    dossier,
    estimate,
    evaluate,
    export,
    index,
    label,
    mcp,
    methods,
    predict,
    reproduce,
    search,
    serve,
    start,
    tag,
    train,
    verify,
)
from labelwise.cli.grouped_help import GroupedHelp
from labelwise.cli.options import with_local_paths
from labelwise.cli.text import complain, stopped
from labelwise.errors import LabelwiseError
from labelwise.system.allocator import keep_freed_memory

HELP = "Train, calibrate, decide and search with images that carry no label, one, or many."

app = typer.Typer(
    name="labelwise",
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (
    demo.demo,
    start.start,
    train.train,
    compare.compare,
    evaluate.evaluate,
    calibrate.calibrate,
    decide.decide,
    aggregate.aggregate,
    apply.apply,
    predict.predict,
    export.export,
    index.index,
    search.search,
    estimate.estimate,
    check.check,
    verify.verify,
    dossier.dossier,
    label.review,
    label.label,
    tag.tag,
    serve.serve,
    mcp.mcp,
    reproduce.reproduce,
    methods.methods,
):
    app.command(cls=GroupedHelp)(verb)
app.add_typer(data.data_app, name="data")
for command in (*app.registered_commands, *data.data_app.registered_commands):
    if command.callback is not None:
        command.callback = with_local_paths(command.callback)


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
    """Options before the verb; ``main`` reads --debug anywhere on the line."""


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


def _sentence(error: Exception) -> str:
    """Say what went wrong; only what no input or machine can cause is called a bug."""
    if isinstance(error, LabelwiseError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory; a smaller batch_size or image_size needs less"
    return f"{type(error).__name__}: {error}; this should not happen, --debug shows where it did"

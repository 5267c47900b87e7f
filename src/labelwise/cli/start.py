"""The start of the command ``labelwise``, whose verbs are mounted before.

Exit status: 0 done, 1 one clear sentence said why not, 2 wrong usage, 130 stopped by Ctrl-C.
"""

import os
import sys
import warnings
from typing import Annotated

import typer

from labelwise import __version__
from labelwise.base.allocator import keep_freed_memory
from labelwise.base.text import printable
from labelwise.cli.command import app, data_app, papers_app
from labelwise.cli.text import complain, stopped
from labelwise.errors import LabelwiseError, QuestionError

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
            if isinstance(error, QuestionError):
                complain(*str(error).split("\n"))
            else:
                complain(_sentence(error))
        sys.exit(1)


def _note(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
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


NAME_SHOWN = 60  # letters before and after one that is not UTF-8, as of a page


def _sentence(error: Exception) -> str:
    """Say what went wrong; only what no input or machine can cause is called a bug."""
    if isinstance(error, LabelwiseError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is not None:
            return f"This needs labelwise[{extra}]: pip install 'labelwise[{extra}]'"
    if isinstance(error, UnicodeEncodeError) and error.reason.startswith("surrogates"):
        around = error.object[max(0, error.start - NAME_SHOWN) : error.end + NAME_SHOWN]
        return f"the name {printable(around)} is not UTF-8; rename it, or choose another"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory; a smaller batch_size or image_size needs less"
    return f"{type(error).__name__}: {error}; this should not happen, --debug shows where it did"

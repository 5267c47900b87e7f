"""``labelwise mcp``: an index for a language model, over standard input and output."""

from pathlib import Path
from typing import Annotated

import typer

from labelwise.cli.index import IndexFolder
from labelwise.cli.options import A_RUN

__all__ = ["mcp"]


def mcp(
    folder: IndexFolder,
    run: Annotated[
        Path | None,
        typer.Argument(help="The folder of a run, or of a model, to tag photos with."),
        A_RUN,
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Also note what a person says of photos, in the index and nowhere else."
        ),
    ] = False,
    folders: Annotated[
        list[Path] | None,
        typer.Option(
            "--folder",
            help="One more folder whose photos may be tagged, beside those of the index; may be "
            "repeated.",
        ),
    ] = None,
) -> None:
    """Let a language model ask about the photos of an index.

    It speaks the Model Context Protocol (MCP) over standard input and output: programs such as
    Claude Desktop start it themselves. Each answer says its interval, what is promised, and under
    which condition. It opens no connection, and changes nothing unless --write is given.
    """
    from labelwise.errors import SettingsError
    from labelwise.models.run_folder import RunFolder
    from labelwise.search import Index

    try:
        from labelwise.web.mcp_server import make_mcp_server
        from labelwise.web.photo_tools import PhotoTools
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the MCP server needs {error.name}; install it with: pip install 'labelwise[mcp]'"
        ) from None

    if folders and run is None:
        raise SettingsError("--folder is where photos to tag lie, which needs a RUN; give one")
    for one in folders or ():
        if not one.is_dir():
            raise SettingsError(f"--folder must be a folder, got {one}")
    with Index(folder) as index:
        tools = PhotoTools(index, None if run is None else RunFolder(run), folders or ())
        make_mcp_server(tools, write=write).run("stdio")

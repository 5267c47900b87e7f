"""``labelwise mcp``: an index for a language model, over standard input and output or HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from labelwise.cli.index import IndexFolder
from labelwise.cli.options import A_RUN, AllowHostOption, TokenFileOption, read_token


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
    http: Annotated[
        bool, typer.Option("--http", help="Answer over HTTP, at /mcp, until Ctrl-C.")
    ] = False,
    host: Annotated[
        str | None,
        typer.Option(
            help="Of --http: the address to listen on. One that others can reach needs a token.",
            show_default="127.0.0.1",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Of --http: the port; 0: any free one.", show_default="8000"
        ),
    ] = None,
    token_file: TokenFileOption = None,
    allow_host: AllowHostOption = None,
) -> None:
    """Let a language model ask about the photos of an index.

    It speaks the Model Context Protocol (MCP) over standard input and output: programs such as
    Claude Desktop start it themselves. With --http it waits for programs that connect, and is
    guarded as labelwise serve is. Each answer says its interval, what is promised, and under
    which condition. It opens no connection, and changes nothing unless --write is given.
    """
    from labelwise.cli.text import say
    from labelwise.errors import SettingsError
    from labelwise.models.run_folder import RunFolder
    from labelwise.photos import Index

    try:
        from labelwise.server import ServeSettings, serve
        from labelwise.server.mcp_server import make_mcp_app, make_mcp_server
        from labelwise.server.photo_tools import PhotoTools
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the MCP server needs {error.name}; install it with: pip install 'labelwise[mcp]'"
        ) from None

    if folders and run is None:
        raise SettingsError("--folder is where photos to tag lie, which needs a RUN; give one")
    for one in folders or ():
        if not one.is_dir():
            raise SettingsError(f"--folder must be a folder, got {one}")
    given = {"--host": host, "--port": port, "--token-file": token_file, "--allow-host": allow_host}
    if not http:
        for name, value in given.items():
            if value:
                raise SettingsError(f"{name} is for HTTP; add --http, or leave it out")
    with Index(folder) as index:
        tools = PhotoTools(index, None if run is None else RunFolder(run), folders or ())
        server = make_mcp_server(tools, write=write)
        if not http:
            server.run("stdio")
            return
        settings = ServeSettings(
            host=host or "127.0.0.1",
            port=8000 if port is None else port,
            token=read_token(token_file),
            hosts=tuple(allow_host or ()),
        )

        def started(address: str) -> None:
            say(f"labelwise answers language models at {address}mcp  (Ctrl-C stops it)")

        serve(make_mcp_app(server, settings), settings, started=started)

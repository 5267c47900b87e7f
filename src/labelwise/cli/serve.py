"""``labelwise serve``: a page and an API for a model, for an index, and for language models."""

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.cli.arguments import (
    AccessLog,
    AllowHost,
    AllowOrigin,
    ClientQueue,
    Decoders,
    Device,
    Host,
    MaxBody,
    OpenPage,
    Port,
    TokenFile,
    TrustedProxy,
    option,
)
from labelwise.cli.command import app, refuse, verb
from labelwise.cli.options import read_secret
from labelwise.cli.text import caution, say
from labelwise.errors import SettingsError

if TYPE_CHECKING:
    from labelwise.server import ServeSettings

UNGUARDED = (
    "pictures are opened by the server itself, since processes of their own, with limits on memory "
    "and time, need Linux: let only people you trust send pictures"
)
OF_MODELS = (
    *("max_batch", "max_wait", "max_queue", "max_body", "max_files", "client_queue"),
    *("access_log", "also", "photoprism", "label_studio", "decoders"),
)


@verb(
    app,
    "serve runs/photos photos.index --open",
    "serve --mcp photos.index runs/photos",
    more="tag_folder",
    fetch={"run": "results"},
)
def serve(
    run: Annotated[
        Path | None,
        typer.Argument(envvar="LABELWISE_RUN", help="A run, a model, or an exported .onnx file."),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Argument(envvar="LABELWISE_INDEX", help="An index, to search its photos too."),
    ] = None,
    *,
    host: Host = None,
    port: Port = None,
    token_file: TokenFile = None,
    open_page: OpenPage = False,
    also: Annotated[
        list[str] | None, option("--also", metavar="NAME=RUN", help="One more model.")
    ] = None,
    device: Device = "cpu",
    mcp: Annotated[
        bool, option("--mcp", help="Answer language models (MCP) about an index.")
    ] = False,
    http: Annotated[bool, option("--http", help="Of --mcp: answer over HTTP at /mcp.")] = False,
    write: Annotated[
        bool, option("--write", help="Of --mcp: also note what a person says of photos.")
    ] = False,
    photoprism: Annotated[
        bool,
        option(
            "--photoprism", envvar="LABELWISE_PHOTOPRISM", help="Answer PhotoPrism's Vision API."
        ),
    ] = False,
    label_studio: Annotated[
        Path | None,
        option(
            "--label-studio",
            envvar="LABELWISE_LABEL_STUDIO",
            help="Be Label Studio's ML backend for this folder.",
        ),
    ] = None,
    allow_host: AllowHost = None,
    tag_folder: Annotated[
        list[Path] | None, option("--tag-folder", help="Of --mcp: one more folder of photos.")
    ] = None,
    max_batch: Annotated[
        int | None,
        option(
            "--max-batch",
            envvar="LABELWISE_MAX_BATCH",
            min=1,
            help="Pictures per forward pass (32).",
        ),
    ] = None,
    max_wait: Annotated[
        float | None,
        option(
            "--max-wait",
            envvar="LABELWISE_MAX_WAIT",
            min=0,
            help="Milliseconds a picture waits for others (5).",
        ),
    ] = None,
    max_queue: Annotated[
        int | None,
        option(
            "--max-queue",
            envvar="LABELWISE_MAX_QUEUE",
            min=1,
            help="Pictures in work before status 429 (256).",
        ),
    ] = None,
    max_files: Annotated[
        int | None,
        option(
            "--max-files", envvar="LABELWISE_MAX_FILES", min=1, help="Pictures of one request (16)."
        ),
    ] = None,
    allow_origin: AllowOrigin = None,
    max_body: MaxBody = None,
    client_queue: ClientQueue = None,
    trusted_proxy: TrustedProxy = None,
    decoders: Decoders = None,
    access_log: AccessLog = None,
) -> None:
    """Serve a page that tags and searches photos, and an API.

    It needs no network. By default only this machine can reach it; an address that
    others can reach needs a token. SIGHUP loads models again whose folders have changed, while
    requests are answered. Options that name a variable can be given in the environment.

    With --mcp it lets a language model ask about the photos of an INDEX, and tag photos with a
    RUN, over standard input and output (programs such as Claude Desktop start it themselves) or
    with --http. It changes nothing unless --write is given. --photoprism answers at
    /photoprism/labels, --label-studio at /label-studio.
    """
    places = [path for path in (run, index) if path is not None]
    if mcp:
        refuse("--mcp answers about an index", *OF_MODELS)
    else:
        refuse("it belongs to --mcp", "http", "write", "tag_folder")
    if mcp and not http:
        refuse("it is for HTTP; add --http", "host", "port", "token_file", "allow_host")
        _serve_mcp(places, tag_folder or [], write)
        return
    settings = server_settings(
        host=host,
        port=port,
        token_file=token_file,
        allow_host=allow_host,
        allow_origin=allow_origin,
        trusted_proxy=trusted_proxy,
        max_batch=max_batch,
        max_wait=None if max_wait is None else max_wait / 1000,
        max_queue=max_queue,
        max_files=max_files,
        max_body=max_body,
        client_queue=client_queue,
        decoders=decoders,
        access_log=access_log,
        models=tuple(map(_named_run, also or ())),
        photoprism=photoprism,
        label_studio=label_studio,
    )
    if mcp:
        _serve_mcp(places, tag_folder or [], write, settings, open_page)
        return
    if run is None:
        page = "labelwise label --page PHOTOS --words words.txt"
        raise SettingsError(f"name the folder of a run to serve; to have photos labelled: {page}")
    from labelwise.models.loading import caution_of, needs_torch
    from labelwise.pictures.worker_starter import can_start
    from labelwise.server import create_app

    for folder in (run, *(folder for _, folder in settings.models)):
        caution(caution_of(folder))
    if settings.decode_processes and not can_start():
        if decoders is not None:
            got = f"--decoders {decoders}"
            raise SettingsError(f"processes that open pictures need Linux; got {got}")
        caution(UNGUARDED)
    threads = None
    if needs_torch(run):
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # here; see labelwise.server.batching.model_thread
    service = create_app(run, index, settings, device=device, threads=threads)
    run_until_stopped(service, settings, open_page, on_hangup=service.service.reload_all)


def server_settings(
    *,
    host: str | None,
    port: int | None,
    token_file: Path | None,
    allow_host: list[str] | None,
    allow_origin: list[str] | None = None,
    trusted_proxy: list[str] | None = None,
    max_batch: int | None = None,
    max_wait: float | None = None,
    max_queue: int | None = None,
    max_files: int | None = None,
    max_body: float | None = None,
    client_queue: int | None = None,
    decoders: int | None = None,
    access_log: Path | None = None,
    models: tuple[tuple[str, Path], ...] = (),
    photoprism: bool = False,
    label_studio: Path | None = None,
) -> "ServeSettings":
    """Return the settings of a server; what is None stays as the server has it."""
    try:
        from labelwise.server import ServeSettings
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"serving needs {error.name}; install it with: pip install 'labelwise[serve]'"
        ) from None
    values: dict[str, Any] = {
        "host": host,
        "port": port,
        "token": read_secret(token_file, "LABELWISE_TOKEN", "the token", "--token-file"),
        "hosts": tuple(allow_host or ()),
        "origins": tuple(allow_origin or ()),
        "trusted_proxies": tuple(trusted_proxy or ()),
        "max_body": None if max_body is None else int(max_body * (1 << 20)),
        "max_batch": max_batch,
        "max_wait": max_wait,
        "max_queue": max_queue,
        "max_files": max_files,
        "client_queue": client_queue,
        "decoders": decoders,
        "access_log": access_log,
        "models": models,
        "photoprism": photoprism,
        "label_studio": label_studio,
    }
    return ServeSettings(**{name: value for name, value in values.items() if value is not None})


def run_until_stopped(
    service: Any, settings: Any, open_page: bool, words: str = "labelwise is at {}", **more: Any
) -> None:
    """Serve an application, and say where it is."""
    from labelwise.server import serve as run_server

    def started(address: str) -> None:
        say(f"{words.format(address)}  (Ctrl-C stops it)")
        if open_page:
            webbrowser.open(address)

    run_server(service, settings, started=started, **more)


def _named_run(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not (name and folder):
        raise SettingsError(f"--also must be a name and a run, as in cats=runs/cats, got {text!r}")
    return name, Path(folder)


def _serve_mcp(
    places: list[Path],
    tag_folders: list[Path],
    write: bool,
    settings: "ServeSettings | None" = None,
    open_page: bool = False,
) -> None:
    """Answer language models, over HTTP if the settings of a server are given."""
    try:
        from labelwise.models.run_folder import RunFolder
        from labelwise.photos import Index
        from labelwise.server.mcp import PhotoTools, make_mcp_app, make_mcp_server
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the MCP server needs {error.name}; install it with: pip install 'labelwise[mcp]'"
        ) from None
    folder = next((path for path in places if (path / "index.json").is_file()), None)
    if folder is None:
        raise SettingsError("--mcp answers about an index: labelwise serve --mcp photos.index")
    run = next((path for path in places if path != folder), None)
    if tag_folders and run is None:
        raise SettingsError("--tag-folder is where photos to tag lie, which needs a RUN; give one")
    for place in tag_folders:
        if not place.is_dir():
            raise SettingsError(f"--tag-folder must be a folder, got {place}")
    with Index(folder) as index:
        tools = PhotoTools(index, None if run is None else RunFolder(run), tag_folders)
        server = make_mcp_server(tools, write=write)
        if settings is None:
            server.run("stdio")
            return
        words = "labelwise answers language models at {}mcp"
        run_until_stopped(make_mcp_app(server, settings), settings, open_page, words)

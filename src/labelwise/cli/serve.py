"""``labelwise serve``: a page and an API for a model, for an index, and for language models."""

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.cli.options import SERVER, Options, read_secret
from labelwise.cli.text import caution, say
from labelwise.errors import SettingsError
from labelwise.models.loading import caution_of, is_exported
from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index
from labelwise.pictures.worker_starter import can_start

if TYPE_CHECKING:
    from labelwise.server import ServeSettings

UNGUARDED = (
    "pictures are opened by the server itself, since processes of their own, with limits on memory "
    "and time, need Linux: let only people you trust send pictures"
)
LIMITS = (
    *("max_batch", "max_files", "max_queue", "max_wait", "client_queue", "connections"),
    *("client_connections", "access_log", "photoprism", "label_studio"),
)
OF_MODELS = (
    *("max_batch", "max_wait", "max_queue", "max_body", "max_files", "client_queue"),
    *("body_memory", "access_log", "also", "photoprism", "label_studio", "decoders"),
)


def serve(run: Path | None, index: Path | None, given: Options) -> None:
    """Serve a page that tags and searches photos, and an API."""
    if given.mcp:
        _serve_mcp([path for path in (run, index) if path is not None], given)
        return
    given.refuse("it belongs to --mcp", "http", "write", "tag_folder")
    settings = server_settings(given)
    if run is None:
        page = "labelwise label --page PHOTOS --words words.txt"
        raise SettingsError(f"name the folder of a run to serve; to have photos labelled: {page}")
    from labelwise.server import create_app

    for folder in (run, *(folder for _, folder in settings.models)):
        caution(caution_of(folder))
    if settings.decode_processes and not can_start():
        if given.decoders is not None:
            got = f"--decoders {given.decoders}"
            raise SettingsError(f"processes that open pictures need Linux; got {got}")
        caution(UNGUARDED)
    threads = None
    if not is_exported(run):
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # here; see labelwise.server.batching.model_thread
    app = create_app(run, index, settings, device=given.device or "cpu", threads=threads)
    run_until_stopped(app, settings, given, on_hangup=app.service.reload_all)


def server_settings(given: Options) -> "ServeSettings":
    """Return the settings of a server; what was not given stays as the server has it."""
    try:
        from labelwise.server import ServeSettings
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"serving needs {error.name}; install it with: pip install 'labelwise[serve]'"
        ) from None
    names = ("host", "port", "allow_host", *SERVER.split(), *LIMITS)
    told: dict[str, Any] = {name: getattr(given, name, None) for name in names}
    token = read_secret(given.token_file, "LABELWISE_TOKEN", "the token", "--token-file")
    values: dict[str, Any] = {name: told[name] for name in ("host", "port", "decoders", "rate")}
    values |= {name: told[name] or None for name in LIMITS} | {
        "token": token,
        "hosts": tuple(told["allow_host"] or ()),
        "origins": tuple(told["allow_origin"] or ()),
        "trusted_proxies": tuple(told["trusted_proxy"] or ()),
        "models": tuple(map(_named_run, getattr(given, "also", None) or ())),
        "max_wait": None if told["max_wait"] is None else told["max_wait"] / 1000,
    }
    for name in ("max_body", "body_memory", "body_disk"):
        values[name] = None if told[name] is None else int(told[name] * (1 << 20))
    return ServeSettings(**{name: value for name, value in values.items() if value is not None})


def run_until_stopped(
    app: Any, settings: Any, given: Options, words: str = "labelwise is at {}", **more: Any
) -> None:
    """Serve an application, and say where it is."""
    from labelwise.server import serve as run_server

    def started(address: str) -> None:
        say(f"{words.format(address)}  (Ctrl-C stops it)")
        if given.open:
            webbrowser.open(address)

    run_server(app, settings, started=started, **more)


def _named_run(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not (name and folder):
        raise SettingsError(f"--also must be a name and a run, as in cats=runs/cats, got {text!r}")
    return name, Path(folder)


def _serve_mcp(places: list[Path], given: Options) -> None:
    try:
        from labelwise.server.mcp import PhotoTools, make_mcp_app, make_mcp_server
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the MCP server needs {error.name}; install it with: pip install 'labelwise[mcp]'"
        ) from None

    given.refuse("--mcp answers about an index", *OF_MODELS)
    folder = next((path for path in places if (path / "index.json").is_file()), None)
    if folder is None:
        raise SettingsError("--mcp answers about an index: labelwise serve --mcp photos.index")
    run = next((path for path in places if path != folder), None)
    if given.tag_folder and run is None:
        raise SettingsError("--tag-folder is where photos to tag lie, which needs a RUN; give one")
    for place in given.tag_folder or ():
        if not place.is_dir():
            raise SettingsError(f"--tag-folder must be a folder, got {place}")
    if not given.http:
        given.refuse("it is for HTTP; add --http", "host", "port", "token_file", "allow_host")
    with Index(folder) as index:
        tools = PhotoTools(index, None if run is None else RunFolder(run), given.tag_folder or ())
        server = make_mcp_server(tools, write=given.write)
        if not given.http:
            server.run("stdio")
            return
        settings = server_settings(given)
        words = "labelwise answers language models at {}mcp"
        run_until_stopped(make_mcp_app(server, settings), settings, given, words)

"""``labelwise serve``: a page and an API for a model, and for the photos of an index."""

from pathlib import Path
from typing import Annotated

import typer

from labelwise.cli.options import A_RUN, AllowHostOption, TokenFileOption, read_token

OF_MODELS = (
    *("max_batch", "max_wait", "max_queue", "max_body", "max_files", "client_queue"),
    *("body_memory", "access_log", "device", "model", "shadow", "shadow_share", "jobs"),
)
UNGUARDED = (
    "pictures are opened by the server itself, since processes of their own, with limits on memory "
    "and time, need Linux: let only people you trust send pictures"
)

# Groups of its options in the help.
LABELLING = "To have photos labelled"
MODELS = "More models, and jobs"
LIMITS = "Limits"
PROGRAMS = "Other programs"


def serve(
    context: typer.Context,
    run: Annotated[
        Path | None,
        typer.Argument(
            envvar="LABELWISE_RUN",
            help="The folder of a run, or of a model; or an exported .onnx file.",
        ),
        A_RUN,
    ] = None,
    index: Annotated[
        Path | None,
        typer.Argument(
            envvar="LABELWISE_INDEX", help="The folder of an index, to search its photos too."
        ),
    ] = None,
    label: Annotated[
        list[Path] | None,
        typer.Option(
            help="Instead of a run: a folder of photos, or a photo, to be asked about in the "
            "browser. Needs --words and no model; may be repeated.",
            rich_help_panel=LABELLING,
        ),
    ] = None,
    words: Annotated[
        Path | None,
        typer.Option(
            help="Of --label: the words to ask about, one per line.", rich_help_panel=LABELLING
        ),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            help="Of --label: the label table that answers become, answers.csv unless given. Every "
            "answer as it came is kept beside it, as .jsonl.",
            rich_help_panel=LABELLING,
        ),
    ] = None,
    guide: Annotated[
        Path | None,
        typer.Option(
            help="Of --label: a run of labelwise start. Four of five questions are then about the "
            "photos it is least sure of; the others are set aside at random, and promises rest on "
            "those alone.",
            rich_help_panel=LABELLING,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RUN",
            help="One more model, asked for by its name as in /api/v1/models/NAME/predict; may be "
            "repeated.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    shadow: Annotated[
        Path | None,
        typer.Option(
            envvar="LABELWISE_SHADOW",
            metavar="RUN",
            help="A model that answers a share of the pictures too, after those who asked have "
            "their answers; /api/v1/shadow says how the two differ.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    shadow_share: Annotated[
        float,
        typer.Option(
            envvar="LABELWISE_SHADOW_SHARE",
            help="Of --shadow: the share of requests.",
            rich_help_panel=MODELS,
        ),
    ] = 0.1,
    jobs: Annotated[
        Path | None,
        typer.Option(
            envvar="LABELWISE_JOBS",
            help="A folder that keeps jobs, so that a server that starts with it again goes on "
            "with them; without it, jobs end with the server.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            envvar="LABELWISE_HOST",
            help="The address to listen on. One that others can reach needs a token.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="LABELWISE_PORT", min=0, max=65535, help="0: any free port.")
    ] = 8000,
    token_file: TokenFileOption = None,
    allow_host: AllowHostOption = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            envvar="LABELWISE_ALLOW_ORIGIN",
            help="A site whose pages may ask, such as https://photos.example; may be repeated. "
            "They send the token as a header; the cookie stays with the server's own page.",
        ),
    ] = None,
    max_batch: Annotated[
        int,
        typer.Option(
            envvar="LABELWISE_MAX_BATCH",
            min=1,
            help="Pictures per forward pass.",
            rich_help_panel=LIMITS,
        ),
    ] = 32,
    max_wait: Annotated[
        float,
        typer.Option(
            envvar="LABELWISE_MAX_WAIT",
            min=0,
            help="Milliseconds that a picture waits for others that are being opened.",
            rich_help_panel=LIMITS,
        ),
    ] = 5.0,
    max_queue: Annotated[
        int,
        typer.Option(
            envvar="LABELWISE_MAX_QUEUE",
            min=1,
            help="Pictures in work before new ones get status 429.",
            rich_help_panel=LIMITS,
        ),
    ] = 256,
    max_body: Annotated[
        float,
        typer.Option(
            envvar="LABELWISE_MAX_BODY", help="MiB of one request.", rich_help_panel=LIMITS
        ),
    ] = 32.0,
    max_files: Annotated[
        int,
        typer.Option(
            envvar="LABELWISE_MAX_FILES",
            min=1,
            help="Pictures of one request.",
            rich_help_panel=LIMITS,
        ),
    ] = 16,
    client_queue: Annotated[
        int | None,
        typer.Option(
            envvar="LABELWISE_CLIENT_QUEUE",
            min=1,
            help="Pictures in work from one address; a proxy is one address. Default: half of "
            "--max-queue.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    body_memory: Annotated[
        float,
        typer.Option(
            envvar="LABELWISE_BODY_MEMORY",
            min=0,
            help="MiB of memory for the bodies of all requests; beyond it they wait on disk.",
            rich_help_panel=LIMITS,
        ),
    ] = 256.0,
    rate: Annotated[
        float,
        typer.Option(
            envvar="LABELWISE_RATE",
            min=0,
            help="Requests per second and client; 0: no limit.",
            rich_help_panel=LIMITS,
        ),
    ] = 200.0,
    connections: Annotated[
        int,
        typer.Option(
            envvar="LABELWISE_CONNECTIONS",
            min=1,
            help="Connections at the same time.",
            rich_help_panel=LIMITS,
        ),
    ] = 512,
    client_connections: Annotated[
        int,
        typer.Option(
            envvar="LABELWISE_CLIENT_CONNECTIONS",
            min=1,
            help="Connections from one address at the same time; a proxy is one address.",
            rich_help_panel=LIMITS,
        ),
    ] = 256,
    decoders: Annotated[
        int | None,
        typer.Option(
            envvar="LABELWISE_DECODERS",
            min=0,
            help="Processes that open pictures, on Linux. Default: one per core; 0: threads of the "
            "server.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    access_log: Annotated[
        Path | None,
        typer.Option(
            envvar="LABELWISE_ACCESS_LOG",
            help="A file for one line of JSON per request, turned over at 16 MiB, five kept.",
        ),
    ] = None,
    photoprism: Annotated[
        bool,
        typer.Option(
            "--photoprism",
            envvar="LABELWISE_PHOTOPRISM",
            help="Answer PhotoPrism's Vision API at /photoprism/labels.",
            rich_help_panel=PROGRAMS,
        ),
    ] = False,
    label_studio: Annotated[
        Path | None,
        typer.Option(
            envvar="LABELWISE_LABEL_STUDIO",
            help="Be an ML backend at /label-studio, for tasks whose photos lie below this folder: "
            "Label Studio's document root or media folder.",
            rich_help_panel=PROGRAMS,
        ),
    ] = None,
    device: Annotated[str, typer.Option(envvar="LABELWISE_DEVICE", help="cpu, cuda, ...")] = "cpu",
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
) -> None:
    """Serve a page that tags and searches photos, and an API.

    Without an index it tags only. With --label PHOTOS --words WORDS it asks people whether photos
    show words, and keeps their answers for labelwise start and labelwise train. The signal SIGHUP
    loads models anew whose folders have changed, while requests are answered.

    It needs no network, and answers only this machine unless told otherwise. Options that name a
    variable can be given in the environment.
    """
    import torch

    from labelwise.cli.predict import find_photos
    from labelwise.cli.text import caution, say
    from labelwise.errors import SettingsError
    from labelwise.models.loading import caution_of
    from labelwise.pictures.forks import can_start

    try:
        from labelwise.server import ServeSettings, create_app, create_labelling_app
        from labelwise.server import serve as run_server
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"serving needs {error.name}; install it with: pip install 'labelwise[serve]'"
        ) from None

    settings = ServeSettings(
        host=host,
        port=port,
        token=read_token(token_file),
        hosts=tuple(allow_host or ()),
        origins=tuple(allow_origin or ()),
        max_body=int(max_body * (1 << 20)),
        max_files=max_files,
        max_batch=max_batch,
        max_wait=max_wait / 1000,
        max_queue=max_queue,
        client_queue=client_queue,
        body_memory=int(body_memory * (1 << 20)),
        rate=rate,
        connections=connections,
        client_connections=client_connections,
        decoders=decoders,
        access_log=access_log,
        photoprism=photoprism,
        label_studio=label_studio,
        models=tuple(map(_named_run, model or ())),
        shadow=shadow,
        shadow_share=shadow_share,
        jobs=jobs,
    )

    def started(address: str) -> None:
        say(f"labelwise is at {address}  (Ctrl-C stops it)")
        if open_page:
            import webbrowser

            webbrowser.open(address)

    if label is not None:
        if run is not None or index is not None:
            raise SettingsError("--label asks about photos without a model: leave out the run")
        if words is None:
            raise SettingsError("--label needs the words to ask about: --words words.txt")
        _refuse_model_options(context)
        from labelwise.photos.words import WordList, WordsLearner
        from labelwise.system.progress import make_watch

        table, photos = answers or Path("answers.csv"), find_photos(label)
        learner = None if guide is None else WordsLearner(guide, photos, watch=make_watch())
        asked = create_labelling_app(
            photos,
            WordList.read(words),
            table,
            settings,
            guide=None if learner is None else learner.guide,
            learn=None if learner is None else learner.learnt,
            find=lambda: find_photos(label),
        )
        run_server(asked, settings, started=started)
        return
    if words is not None or answers is not None or guide is not None:
        raise SettingsError("--words, --answers and --guide are options of --label PHOTOS")
    if run is None:
        raise SettingsError(
            "name the folder of a run to serve, or photos to ask about: --label PHOTOS --words "
            "WORDS"
        )
    if shadow is None and _is_given(context, "shadow_share"):
        raise SettingsError("--shadow-share is an option of --shadow RUN")
    for folder in (run, *(folder for _, folder in settings.models)):
        caution(caution_of(folder))
    if settings.decode_processes and not can_start():
        if decoders is not None:
            raise SettingsError(
                f"processes that open pictures need Linux; got --decoders {decoders}"
            )
        caution(UNGUARDED)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # here; see labelwise.server.batching.model_thread
    app = create_app(run, index, settings, device=device, threads=threads)
    run_server(app, settings, started=started, on_hangup=app.service.reload_all)


def _named_run(text: str) -> tuple[str, Path]:
    from labelwise.errors import SettingsError

    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise SettingsError(f"--model must be a name and a run, as in cats=runs/cats, got {text!r}")
    return name, Path(folder)


def _refuse_model_options(context: typer.Context) -> None:
    """Raise for options of serving a model that were given with --label."""
    from labelwise.errors import SettingsError

    for name in OF_MODELS:
        if _is_given(context, name):
            option = f"--{name.replace('_', '-')}"
            raise SettingsError(f"--label takes no pictures, so {option} does not apply")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"

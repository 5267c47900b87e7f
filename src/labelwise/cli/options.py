"""Every option of every verb, declared once: its type, its flags and its line of help.

A verb names those that it takes (:func:`labelwise.cli.command.verb`), so one name has one meaning
everywhere. None, or False, means that an option was not given.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from labelwise.cli.command import declared, option

ScoreKind = Literal["logits", "probs"]
DecodeKind = Literal["auto", "cpu", "cuda"]
EngineKind = Literal["local", "ray"]
Pool = Literal["any", "most", "evidence"]

Source = Annotated[
    str,
    typer.Argument(help="A file, a folder, scenes, FORMAT:path, or 'train=a.csv;test=b.csv'."),
]
TABLE = "set skip_missing duplicates extension"  # options of how a label table is read


@declared
class Options:
    """What a command line gave; a verb's object has the options of that verb alone."""

    # Output
    out: str | None = option("Where to write.", "-o", writes=True)
    overwrite: bool = option("Replace files that exist.", envvar="LABELWISE_OVERWRITE")
    json: bool = option("Print JSON.")
    html: Path | None = option("Also write a page, .html.", writes=True)
    csv: Path | None = option(
        "Write the figures, or the questions of an audit, as .csv.", writes=True
    )
    plot: Path | None = option("Also draw them: .png or .svg.", writes=True)
    report: Path | None = option("Also write how each person answered.", writes=True)
    explain: Path | None = option(
        "Also write an .html page of where labels were seen.", writes=True
    )
    taxonomy_out: Path | None = option("Also write the hierarchy of keywords, .csv.", writes=True)
    photos: Path | None = option("The folder of the photos; of `demo`, where to write some.")
    log: list[str] | None = option("Also log to tensorboard, wandb or mlflow.")
    changes: Path | None = option(
        "The answer log that changes are appended to (OUT.answers.jsonl)."
    )
    format: str | None = option("What to write, as listed above.")
    for_: str | None = option(
        "Write for a tool: label-studio, cvat, fiftyone, coco, voc or huggingface."
    )
    dry_run: bool = option("Only say what would be done.")
    fresh: bool = option("Start over in the folder.")
    all: bool = option("Show every row.")
    strict: bool = option("Exit with status 1 at the first fault.")

    # Data
    data: str | None = option("Photos with labels: any data that labelwise reads.")
    set: list[str] | None = option(
        "A setting, or an option of the data's format, as columns.labels=tags.", metavar="KEY=VALUE"
    )
    skip_missing: bool = option("Leave missing images out.")
    duplicates: Literal["stop", "drop", "keep"] | None = option("Rows that are there twice (stop).")
    extension: str | None = option("Added to image names without it, such as .jpg.")
    on_error: str | None = option(
        "Pictures that cannot be read: stop or skip.", show_default="stop"
    )
    taxonomy: Path | None = option("Which label is a kind of which: a CSV of child,parent.")
    attributes: Path | None = option("Labels that exclude each other: a CSV of group,kind,labels.")
    split: str | None = option("Which split; `all` for every row.")
    labels: str | None = option("The labels, if they are in a second file.")
    scores: ScoreKind | None = option("What the scores are.")
    link: str | None = option("Of logits: sigmoid (default), softmax or none.")
    by: list[str] | None = option(
        "A column that names groups, such as site or burst; may be repeated."
    )
    pool: Pool | None = option(
        "Make one row of each group of --by: any, most or evidence (scores add up)."
    )
    table: Path | None = option("A table of path and the columns of --by.")
    answers: str | None = option("A table of what a person answered.")
    seed: int | None = option("The seed of what is drawn (0).")
    folds: int | None = option("Fits that each leave out a part of the rows, and judge it.", min=2)

    # Models and machines
    model: str | None = option("The model: a run, a folder or an exported file.", "-m")
    device: str | None = option("cpu (default), cuda, ...", envvar="LABELWISE_DEVICE")
    decode: DecodeKind | None = option(
        "Who decodes JPEGs: cpu (default), cuda (a few levels off) or auto."
    )
    batch_size: int | None = option("Images at once (64).", min=1)
    engine: EngineKind | None = option("Here (local), or on a Ray cluster.")
    workers: int | None = option("Processes or threads that work side by side.", min=1)
    decoders: int | None = option(
        "Processes that open pictures.", min=0, envvar="LABELWISE_DECODERS"
    )
    jobs: int | None = option("Runs side by side (2 on a GPU, else 1).", min=1)
    shard_rows: int | None = option("Images in each shard (4096).", min=1)

    # Training
    method: str | None = option("One of `labelwise papers methods`.", show_default="auto")
    methods: str | None = option("Names of methods with commas between.")
    effort: str | None = option(
        "quick (a head on frozen features), good or best.", show_default="quick on photos"
    )
    minutes: float | None = option("Stop --effort good or best after this time.")
    settings: Path | None = option("A YAML file of settings; flags override it.")
    backbone: str | None = option(
        "The network: small-cnn, a timm name or torchvision/NAME.", show_default="auto"
    )
    features: str | None = option("Train a head on the frozen features of this network.")
    weights: str | None = option("Weights of the network: a file, a run, or pretrained.")
    start: str | None = option("An earlier run with these labels, to begin with.")
    head: str | None = option(
        "linear, query2label, ml-decoder, boostlu or two-head.", show_default="the method's"
    )
    image_size: int | None = option("Side of the input in pixels.", show_default="the backbone's")
    bands: str | None = option(
        "Names of bands of TIFF, DICOM or .npy, or all.", show_default="8-bit RGB"
    )
    composite: str | None = option(
        "With --bands: what people are shown.",
        show_default="red,green,blue if there are such, else the first",
    )
    window: str | None = option("Of DICOM: none, file, or CENTER,WIDTH.", show_default="none")
    augment: str | None = option(
        "Random changes: shift, crop-flip+trivial, ...", show_default="none"
    )
    epochs: int | None = option(
        "Passes over the training split.", show_default="8; 30 with --features"
    )
    lr: float | None = option("Highest learning rate.", show_default="0.004; 0.001 with --features")
    weight_decay: float | None = option(
        "On weights, not biases.", show_default="0.05; 0.1 with --features"
    )
    optimizer: str | None = option("adamw or sgd.", show_default="adamw")
    schedule: str | None = option("one-cycle, cosine, step or constant.", show_default="one-cycle")
    metric: str | None = option(
        "What the kept epoch is best in: map, log_loss, ece, ...", show_default="map"
    )
    patience: int | None = option(
        "Stop after epochs without a better metric.", show_default="never"
    )
    precision: str | None = option("32 or bf16.", show_default="32")
    accelerator: str | None = option("auto, cpu or cuda.", show_default="auto")
    deterministic: bool = option("On a GPU: equal runs to the bit; slower.")
    devices: int | None = option("GPUs, or processes on a CPU.", show_default="1")
    words: Path | None = option("Labels as a text file, one word per line, such as dog.")
    set_aside: float | None = option(
        "With --words: share of answered photos kept for guarantees (0.2).", min=0, max=0.9
    )
    against: Path | None = option("With --words: a run to compare with.")

    # Probabilities, rules and guarantees
    calibrator: str | None = option(
        "auto, none, temperature, platt, beta, isotonic, few, ...", show_default="auto"
    )
    rule: str | None = option(
        "How probabilities become labels: 0.5, top-4, best-f, precision-0.9, cost-1-5, ...",
        show_default="auto",
    )
    guarantee: str | None = option(
        "Thresholds tested to hold: precision=0.9, recall=0.9, f=0.6 or tags=0.95."
    )
    confidence: float | None = option("Confidence of the guarantee (0.95).")
    wrong_at_most: float | None = option("The share that may be wrong, such as 0.1.")
    guarantee_share: float | None = option(
        "Share of rows kept from the calibrator for the guarantee (0.5)."
    )
    cross_fit: bool = option("Fit the calibrator again on all rows afterwards.")
    per_label: bool = option("Guarantee each label, not all together.")
    per_tag: bool = option("Guarantee each tag, not all together.")
    right_at_least: float | None = option("Guarantee that this share of the tags is right (0.9).")
    again: Path | None = option("Test what a receipt.json says, with other random questions.")
    trust: str | None = option("Of several annotators, the one whose answers count.")
    test: Path | None = option("Other scores, to report on.")
    fit_on: str | None = option("Split to fit on.")
    report_on: str | None = option("Split to report on.")
    texts: Path | None = option("Embeddings of the labels' texts, .npz.")
    prompts: Path | None = option("Which texts each label has: .csv of label,prompt.")
    bins: int | None = option("Bins of the reliability curves (10).", min=1)
    top_k: int | None = option("Most probable labels of an image (4).", min=1)
    query_length: int | None = option("Longest query; 0 for none (3).", min=0)
    without_training_photos: bool = option(
        "Leave out photos that the model was fitted on, and near-duplicates."
    )
    adapt_shares: bool = option("Adapt to how frequent labels are in these photos.")
    frequencies: bool = option("Also show how frequent each label is here.")
    intended_use: str | None = option("What the model is for, in your words.")
    index: Path | None = option("An index whose guarantees are shown.")

    # Comparisons and papers
    seeds: int | None = option("Runs of each row (3).", min=1)
    tune: int | None = option("Tries of each method, chosen on validation.", min=0)
    sweep: str | None = option("An option of a method and values: lpr_weight=0,1,3.")
    choose: str | None = option("The validation metric that chooses: map, ece, ...")
    root: Path | None = option("The folder that holds the data sets (data).")
    source: list[str] | None = option("Other data than the paper's; of the survey, as coco=FILE.")
    quick: bool = option("A recipe of minutes, not days.")
    rows: str | None = option("Only these rows, or methods, commas between.")
    judge: list[str] | None = option("Judge scores or a released checkpoint, as ROW=FILE.")
    query: str | None = option("What to retrieve in 001-fig4, as 'dog, -beach'.")

    # Photos
    top: int | None = option("How many.", "-n", min=1)
    at_least: float | None = option("Least probability, such as 0.8.")
    like: str | None = option("Photos that look like this file.")
    text: str | None = option("Photos that match this text, as 'a red bicycle'.")
    encoder: Path | None = option("Where the text model is, if it moved.")
    sort: Literal["score", "date"] | None = option("Most probable or newest first.")
    folder: str | None = option("Only photos below this folder, such as 2023/june.")
    since: str | None = option("Only photos taken on or after a day, month or year.")
    until: str | None = option("Only photos taken on or before a day, month or year.")
    camera: str | None = option("Only photos by a camera whose name holds this.")
    rating: int | None = option("Only photos rated this high.", min=1, max=5)
    keyword: list[str] | None = option("Only photos with this keyword.")
    distinct: bool = option("Take near-duplicates as one photo: the earliest.")
    who: str | None = option("Who answers (the user).")
    count: bool = option("Only say how many there are.")
    paths_only: bool = option("One path per line, as for xargs -d '\\n'.")
    null: bool = option("End each path with a null byte, as for xargs -0.", "--null", "-0")
    unreadable: bool = option("List the files that could not be read.")
    answers_at_most: int | None = option("How many answers you are willing to give (30).", min=1)
    ask: int | None = option("Draw this many photos at random, to be answered.", min=1)
    receipts: bool = option("Print the receipts of an index as JSON lines.")
    count_by: Literal["calibrated", "answers"] | None = option(
        "Of a table: calibrated scores (default), or the answers of each group alone."
    )
    order: str | None = option(
        "What to ask first: value, uncertain, missing, wrong, entropy, diverse, random."
    )
    label: list[str] | None = option("Only this label; may be repeated.")
    undo: bool = option("Take back what was written.")
    page: bool = option("Ask in the browser.")
    guide: Path | None = option("A run that chooses the questions.")
    watch: bool = option("Stay, and take in changes as they happen.")
    forget_missing: bool = option("Forget the files that are gone.")
    rebuild: bool = option("Score every photo again.")
    xmp: bool = option("Write XMP side-cars beside the photos.")
    embed: bool = option("Write into JPEG, TIFF and PNG files, through exiftool.")
    immich: str | None = option(
        "Write tags to Immich, such as http://immich:2283.", metavar="ADDRESS"
    )
    immich_key_file: Path | None = option("A file with Immich's API key; or LABELWISE_IMMICH_KEY.")
    adopt: bool = option("Also replace keywords that another index wrote.")

    # Label tables
    shares: str | None = option("Draw a new split.", show_default="train=.8,val=.1,test=.1")
    val: float | None = option("Keep the split; take this share of train as validation.")
    by_content: bool | None = option(
        "Keep equal images in one split (default).", "--by-content/--no-by-content"
    )
    content: bool = option("Also read every pixel; name broken and shared images.")
    add_groups: bool = option("Make labels of the taxonomy's parents.")
    predictions: Path | None = option("What `labelwise predict` wrote about crops of the source.")
    crops: Path | None = option("crops.csv of `data import`.")
    embeddings: Path | None = option("Compare embeddings of another program, .npz.")
    cosine: float | None = option("Least cosine of near-duplicates, such as 0.9.")
    gap: float | None = option("Group bursts: seconds without a photo end one.", min=0)
    time_column: str | None = option("The column of times (time).")
    camera_column: str | None = option("The column of cameras.")
    single_positive: bool = option("Keep one present label per image.")
    keep: float | None = option("Keep each label known at this rate.")
    flip_present: float | None = option("Chance that present turns absent.")
    flip_absent: float | None = option("Chance that absent turns present.")
    min_count: int | None = option("Leave out labels with fewer photos or answers (1).", min=1)
    vote_by: Literal["counts", "workers"] | None = option(
        "The share of yes (counts), or a model of each worker."
    )
    smoothing: float | None = option("With counts: added to yes and no (0).", min=0)
    right: float | None = option("With workers: prior share of right answers (0.8).")
    strength: float | None = option("With workers: answers the prior counts as (4).", min=0)
    find: Literal["missing", "wrong", "next"] | None = option(
        "Labels that are missing (default) or wrong, or what to label next."
    )
    apply: Path | None = option("Put the answers of this review file into the table.")
    checks: int | None = option("Questions marked in each stretch of the list (50).", min=1)
    blind: bool = option("Leave the model's guesses out of the page.")
    context: bool | None = option(
        "Judge a label by the photo's other labels, too.", "--context/--no-context"
    )
    questions: Literal["photos", "labels"] | None = option(
        "Ask about complete photos, or single labels."
    )
    accept_guaranteed: bool = option("Also change guaranteed rows without an answer.")
    test_too: bool = option("Allow changes in the test split.")

    # Exports
    input: Literal["image", "pixels"] | None = option(
        "One picture of any size (default), or batches of scaled pixels."
    )
    exact_resize: bool | None = option(
        "Scale as Pillow does (default), or faster.", "--exact-resize/--fast-resize"
    )
    pictures: int | None = option("Pictures to compare on (64).", min=1)
    int8: bool = option("Eight-bit weights, recalibrated on --data.")
    int8_anyway: bool = option("Write the eight-bit file even if it is worse.")
    open_thresholds: bool = option("Take thresholds as an optional input.")
    with_runtime: bool = option("Write labelwise_runtime.py beside the file.")
    runtime: Path | None = option("Of web: the npm package onnxruntime-web, .tgz.")
    license: str | None = option("Of hf: the license that the card names.")
    push: str | None = option("Of hf: also put it on the hub, as OWNER/NAME.")

    # Servers
    mcp: bool = option("Answer language models (MCP) about an index.")
    http: bool = option("Of --mcp: answer over HTTP at /mcp.")
    write: bool = option("Of --mcp: also note what a person says of photos.")
    tag_folder: list[Path] | None = option("Of --mcp: one more folder of photos.")
    host: str | None = option("The address to listen on (127.0.0.1).", envvar="LABELWISE_HOST")
    port: int | None = option(
        "The port (8000); 0: any free one.", envvar="LABELWISE_PORT", min=0, max=65535
    )
    token_file: Path | None = option(
        "A file with the token of requests; or LABELWISE_TOKEN.", envvar="LABELWISE_TOKEN_FILE"
    )
    open: bool = option("Open the page in the browser.")
    also: list[str] | None = option("One more model.", metavar="NAME=RUN")
    allow_host: list[str] | None = option(
        "One more name the server answers to.", envvar="LABELWISE_ALLOW_HOST"
    )
    allow_origin: list[str] | None = option(
        "A site whose pages may ask.", envvar="LABELWISE_ALLOW_ORIGIN"
    )
    max_batch: int | None = option(
        "Pictures per forward pass (32).", envvar="LABELWISE_MAX_BATCH", min=1
    )
    max_wait: float | None = option(
        "Milliseconds a picture waits for others (5).", envvar="LABELWISE_MAX_WAIT", min=0
    )
    max_queue: int | None = option(
        "Pictures in work before status 429 (256).", envvar="LABELWISE_MAX_QUEUE", min=1
    )
    max_body: float | None = option("MiB of one request (32).", envvar="LABELWISE_MAX_BODY")
    max_files: int | None = option(
        "Pictures of one request (16).", envvar="LABELWISE_MAX_FILES", min=1
    )
    client_queue: int | None = option(
        "Pictures in work from one address.", envvar="LABELWISE_CLIENT_QUEUE", min=1
    )
    body_memory: float | None = option(
        "MiB of memory for all requests (256).", envvar="LABELWISE_BODY_MEMORY", min=0
    )
    body_disk: float | None = option(
        "MiB of temporary files for all requests (2048).", envvar="LABELWISE_BODY_DISK", min=0
    )
    trusted_proxy: list[str] | None = option(
        "A proxy whose X-Forwarded-For is the client.", envvar="LABELWISE_TRUSTED_PROXY"
    )
    rate: float | None = option(
        "Requests per second and client (200); 0: any.", envvar="LABELWISE_RATE", min=0
    )
    connections: int | None = option(
        "Connections at once (512).", envvar="LABELWISE_CONNECTIONS", min=1
    )
    client_connections: int | None = option(
        "Connections of one address (256).", envvar="LABELWISE_CLIENT_CONNECTIONS", min=1
    )
    access_log: Path | None = option(
        "A file for a line of JSON per request.", envvar="LABELWISE_ACCESS_LOG"
    )
    photoprism: bool = option("Answer PhotoPrism's Vision API.", envvar="LABELWISE_PHOTOPRISM")
    label_studio: Path | None = option(
        "Be Label Studio's ML backend for this folder.", envvar="LABELWISE_LABEL_STUDIO"
    )

    @property
    def target(self) -> Path:
        """Where a verb writes that needs ``--out``."""
        return Path(self.out or "")

    def refuse(self, reason: str, *names: str) -> None:
        """Stop if one of these options was given, which mean nothing here."""
        from labelwise.errors import SettingsError

        for name in names:
            value = getattr(self, name)
            if value not in (None, False, []):
                flag = f"--{name.strip('_').replace('_', '-')}"
                raise SettingsError(f"{flag} does not apply: {reason}; leave it out")


def model_path(given: Options) -> Path | None:
    """Return the local folder or file of ``--model``; a run in a bucket is fetched."""
    from labelwise.models.run_folder import fetched_run
    from labelwise.system.storage import is_uri

    if given.model is None:
        return None
    return fetched_run(given.model, "model") if is_uri(given.model) else Path(given.model)


def decoder_of(given: Options) -> Literal["cpu", "cuda"]:
    """Return who decodes JPEGs for a model on the device; stop where it cannot be had."""
    from labelwise.errors import SettingsError

    device = given.device or "cpu"
    on_gpu = device.partition(":")[0] == "cuda"
    if given.decode == "cuda" and not on_gpu:
        raise SettingsError(f"--decode cuda needs a model on a GPU, --device cuda; got {device}")
    return "cuda" if on_gpu and given.decode in ("auto", "cuda") else "cpu"


def number_of_folds(folds: int | None, reason: str = "") -> int:
    """Return how many folds rows are dealt into; stop where ``reason`` says why there are none."""
    from labelwise.errors import SettingsError

    if folds is not None and reason:
        raise SettingsError(f"--folds does not apply: {reason}; leave it out")
    return 5 if folds is None else folds


def check_weights(given: Options) -> None:
    """Stop at the weights of --features where no features are asked for."""
    from labelwise.errors import SettingsError

    if given.weights is not None and given.features is None:
        raise SettingsError(
            "--weights are those of --features, which is not given; for a backbone that is "
            f"trained say --set weights={given.weights}"
        )


def load_table(source: str, given: Options) -> Any:
    """Return the label table of a source, read as the options of its format say."""
    from labelwise.data import load

    more = parsed(given.set)
    if given.extension is not None:
        more["extension"] = given.extension
    duplicates = given.duplicates or "stop"
    return load(source, skip_missing=given.skip_missing, duplicates=duplicates, **more)


def parsed(options: list[str] | None) -> dict[str, Any]:
    """Return the options of a format given as ``--set columns.labels=tags``."""
    from labelwise.system.yaml_values import nested, parse_assignments

    return nested(parse_assignments(options or ()))


def read_secret(file: Path | None, variable: str, what: str, flag: str) -> str | None:
    """Return what a file or a variable of the environment holds; None where neither is given."""
    import os

    from labelwise.errors import SettingsError

    given = os.environ.get(variable)
    if file is None:
        return given or None
    if given:
        raise SettingsError(f"give {what} once: {flag} or {variable}, not both")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(
            f"{what.removeprefix('the ')} file {file} cannot be read: {reason}"
        ) from None

"""The options that several verbs share: one name, one type and one meaning everywhere.

An option of one verb stands in its function. None, or False, means that it was not given.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

option = partial(typer.Option, show_default=False)  # the help says in words what is taken

NeededOut = Annotated[str, option("--out", "-o", help="Where to write.")]
Out = Annotated[str | None, option("--out", "-o", help="Where to write.")]
Json = Annotated[bool, option("--json", help="Print JSON.")]
Html = Annotated[Path | None, option("--html", help="Also write a page, .html.")]
Csv = Annotated[
    Path | None, option("--csv", help="Write the figures, or the questions of an audit, as .csv.")
]
Photos = Annotated[
    Path | None,
    option("--photos", help="The folder of the photos."),
]
Format = Annotated[str | None, option("--format", help="What to write, as listed above.")]
ForTool = Annotated[
    str | None,
    option(
        "--for", help="Write for a tool: label-studio, cvat, fiftyone, coco, voc or huggingface."
    ),
]
DryRun = Annotated[bool, option("--dry-run", help="Only say what would be done.")]
Fresh = Annotated[bool, option("--fresh", help="Start over in the folder.")]
Strict = Annotated[bool, option("--strict", help="Exit with status 1 at the first fault.")]
Source = Annotated[
    str,
    typer.Argument(help="A file, a folder, scenes, FORMAT:path, or 'train=a.csv;test=b.csv'."),
]
Data = Annotated[
    str | None, option("--data", help="Photos with labels: any data that labelwise reads.")
]
Assign = Annotated[
    list[str] | None,
    option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, or an option of the data's format, as columns.labels=tags.",
    ),
]
SkipMissing = Annotated[bool, option("--skip-missing", help="Leave missing images out.")]
SkipBroken = Annotated[
    bool, option("--skip-broken", help="Leave out lines of a table that are broken.")
]
Duplicates = Annotated[
    Literal["stop", "drop", "keep", "join"] | None,
    option("--duplicates", help="Rows of one photo (stop)."),
]
Extension = Annotated[
    str | None, option("--extension", help="Added to image names without it, such as .jpg.")
]
TaxonomyFile = Annotated[
    Path | None, option("--taxonomy", help="Which label is a kind of which: a CSV of child,parent.")
]
Attributes = Annotated[
    Path | None,
    option("--attributes", help="Labels that exclude each other: a CSV of group,kind,labels."),
]
Split = Annotated[str | None, option("--split", help="Which split; `all` for every row.")]
Labels = Annotated[str | None, option("--labels", help="The labels, if they are in a second file.")]
Scores = Annotated[
    Literal["logits", "probs"] | None, option("--scores", help="What the scores are.")
]
Link = Annotated[
    str | None, option("--link", help="Of logits: sigmoid (default), softmax or none.")
]
By = Annotated[
    list[str] | None,
    option("--by", help="A column that names groups, such as site or burst; may be repeated."),
]
Pool = Annotated[
    Literal["any", "most", "evidence"] | None,
    option(
        "--pool", help="Make one row of each group of --by: any, most or evidence (scores add up)."
    ),
]
GroupTable = Annotated[
    Path | None, option("--table", help="A table of path and the columns of --by.")
]
Answers = Annotated[str | None, option("--answers", help="A table of what a person answered.")]
Seed = Annotated[int | None, option("--seed", help="The seed of what is drawn (0).")]
Folds = Annotated[
    int | None,
    option("--folds", min=2, help="Fits that each leave out a part of the rows, and judge it."),
]
Model = Annotated[
    str | None, option("--model", "-m", help="The model: a run, a folder or an exported file.")
]
Device = Annotated[
    str, option("--device", envvar="LABELWISE_DEVICE", help="cpu (default), cuda, ...")
]
Decode = Annotated[
    Literal["auto", "cpu", "cuda"] | None,
    option("--decode", help="Who decodes JPEGs: cpu (default), cuda (a few levels off) or auto."),
]
BatchSize = Annotated[int | None, option("--batch-size", min=1, help="Images at once (64).")]
Engine = Annotated[
    Literal["local", "ray"] | None, option("--engine", help="Here (local), or on a Ray cluster.")
]
Workers = Annotated[
    int | None, option("--workers", min=1, help="Processes or threads that work side by side.")
]
Decoders = Annotated[
    int | None,
    option("--decoders", min=0, envvar="LABELWISE_DECODERS", help="Processes that open pictures."),
]
Jobs = Annotated[
    int | None, option("--jobs", min=1, help="Runs side by side (2 on a GPU, else 1).")
]
SettingsFile = Annotated[
    Path | None, option("--settings", help="A YAML file of settings; flags override it.")
]
Features = Annotated[
    str | None, option("--features", help="Train a head on the frozen features of this network.")
]
Weights = Annotated[
    str | None, option("--weights", help="Weights of the network: a file, a run, or pretrained.")
]
ImageSize = Annotated[
    int | None,
    option("--image-size", show_default="the network's", help="Side of the input in pixels."),
]
WordsFile = Annotated[
    Path | None, option("--words", help="Labels as a text file, one word per line, such as dog.")
]
Calibrator = Annotated[
    str | None,
    option(
        "--calibrator",
        show_default="auto",
        help="auto, none, temperature, platt, beta, isotonic, few, ...",
    ),
]
Rule = Annotated[
    str | None,
    option(
        "--rule",
        show_default="auto",
        help="How probabilities become labels: 0.5, top-4, best-f, precision-0.9, cost-1-5, ...",
    ),
]
Guarantee = Annotated[
    str | None,
    option(
        "--guarantee",
        help="Thresholds tested to hold: precision=0.9, recall=0.9, f=0.6 or tags=0.95.",
    ),
]
Confidence = Annotated[
    float | None, option("--confidence", help="Confidence of the guarantee (0.95).")
]
WrongAtMost = Annotated[
    float | None, option("--wrong-at-most", help="The share that may be wrong, such as 0.1.")
]
WrongAbout = Annotated[
    float | None,
    option(
        "--wrong-about",
        help="Cut the list where about this share is wrong, such as 0.1.",
    ),
]
Seeds = Annotated[int | None, option("--seeds", min=1, help="Runs of each row (3).")]
Root = Annotated[Path | None, option("--root", help="The folder that holds the data sets (data).")]
Top = Annotated[int | None, option("--top", "-n", min=1, help="How many.")]
AtLeast = Annotated[float | None, option("--at-least", help="Least probability, such as 0.8.")]
Like = Annotated[
    str | None,
    option("--like", help="Photos like this file, or like an album: a folder or keyword:NAME."),
]
Text = Annotated[
    str | None, option("--text", help="Photos that match this text, as 'a red bicycle'.")
]
Encoder = Annotated[Path | None, option("--encoder", help="Where the text model is, if it moved.")]
Distinct = Annotated[
    bool, option("--distinct", help="Take near-duplicates as one photo: the earliest.")
]
Who = Annotated[str | None, option("--who", help="Who answers (the user).")]
Ask = Annotated[
    int | None, option("--ask", min=1, help="Draw this many photos at random, to be answered.")
]
Order = Annotated[
    str | None,
    option(
        "--order",
        help="What to ask first: value, uncertain, missing, wrong, entropy, diverse, random.",
    ),
]
Undo = Annotated[bool, option("--undo", help="Take back what was written.")]
Page = Annotated[bool, option("--page", help="Ask in the browser.")]
MinCount = Annotated[
    int,
    option("--min-count", min=1, help="Leave out labels with fewer photos or answers (1)."),
]
Host = Annotated[
    str | None,
    option("--host", envvar="LABELWISE_HOST", help="The address to listen on (127.0.0.1)."),
]
Port = Annotated[
    int | None,
    option(
        "--port",
        envvar="LABELWISE_PORT",
        min=0,
        max=65535,
        help="The port (8000); 0: any free one.",
    ),
]
TokenFile = Annotated[
    Path | None,
    option(
        "--token-file",
        envvar="LABELWISE_TOKEN_FILE",
        help="A file with the token of requests; or LABELWISE_TOKEN.",
    ),
]
OpenPage = Annotated[bool, option("--open", help="Open the page in the browser.")]
AllowHost = Annotated[
    list[str] | None,
    option(
        "--allow-host", envvar="LABELWISE_ALLOW_HOST", help="One more name the server answers to."
    ),
]
AllowOrigin = Annotated[
    list[str] | None,
    option("--allow-origin", envvar="LABELWISE_ALLOW_ORIGIN", help="A site whose pages may ask."),
]
MaxBody = Annotated[
    float | None, option("--max-body", envvar="LABELWISE_MAX_BODY", help="MiB of one request (32).")
]
ClientQueue = Annotated[
    int | None,
    option(
        "--client-queue",
        envvar="LABELWISE_CLIENT_QUEUE",
        min=1,
        help="Pictures in work from one address.",
    ),
]
TrustedProxy = Annotated[
    list[str] | None,
    option(
        "--trusted-proxy",
        envvar="LABELWISE_TRUSTED_PROXY",
        help="A proxy whose X-Forwarded-For is the client.",
    ),
]
AccessLog = Annotated[
    Path | None,
    option(
        "--access-log", envvar="LABELWISE_ACCESS_LOG", help="A file for a line of JSON per request."
    ),
]

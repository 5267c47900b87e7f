"""The command ``labelwise`` with all of its verbs, in the order of its help page."""

from labelwise.cli import (  # noqa: F401
    audit,
    calibrate,
    compare,
    count,
    data,
    data_labels,
    data_review,
    demo,
    evaluate,
    export,
    index,
    label,
    methods,
    papers,
    predict,
    report,
    search,
    serve,
    tag,
    train,
)
from labelwise.cli.command import app, data_app
from labelwise.cli.start import main

__all__ = ["app", "data_app", "main"]

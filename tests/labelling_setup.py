"""The labelling page of a folder, served in a thread of the test."""

from contextlib import contextmanager

from web_setup import served

from labelwise.photos.words import WordList
from labelwise.server import ServeSettings, create_labelling_app


@contextmanager
def labelling(folder, words=("dog", "cat"), guide=None, learn=None, find=None, **options):
    """Serve the labelling page of the photos of a folder in a thread."""
    settings = ServeSettings(**{"decoders": 0, "rate": 0, "port": 0, **options})
    photos = sorted((folder / "photos").iterdir())
    made = create_labelling_app(
        photos,
        WordList.of(*words),
        folder / "answers.csv",
        settings,
        guide=guide,
        learn=learn,
        find=find,
    )
    with served(made, settings) as client:
        yield client

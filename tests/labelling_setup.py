"""The labelling page of a folder, served in a thread of the test."""

from contextlib import contextmanager

from web_setup import served

from labelwise.photos.words import WordList
from labelwise.server import ServeSettings, create_labelling_app


@contextmanager
def labelling(folder, words=("dog", "cat"), guide=None, find=None, **options):
    """Serve the labelling page of the photos of a folder in a thread."""
    settings = ServeSettings(**{"decoders": 0, "port": 0, **options})
    photos, words = sorted((folder / "photos").iterdir()), WordList.of(*words)
    given = (photos, words, folder / "answers.csv", settings)
    with served(create_labelling_app(*given, guide=guide, find=find), settings) as client:
        yield client

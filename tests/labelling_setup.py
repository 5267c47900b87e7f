"""The labelling page of a folder, served in a thread of the test."""

import threading
from contextlib import contextmanager

from patience import PATIENCE, wait_until
from web_setup import Client

from labelwise.web import ServeSettings, create_labelling_app
from labelwise.web.serving import Server, listen, server_config
from labelwise.words import WordList


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
    config = server_config(made, settings)
    config.timeout_graceful_shutdown = 2
    listener, server = listen(settings), Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive())
    try:
        yield Client(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()

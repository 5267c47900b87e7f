"""An S3 protocol server on the loopback address, with faults injected."""

import logging
import random
import threading
from contextlib import contextmanager
from typing import NamedTuple

import boto3
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from labelwise.base import storage


class Faulty:
    """A server that now and then answers 500 or hangs up, as told by ``share``."""

    def __init__(self, app):
        self.app, self.share, self.faults = app, 0.0, 0
        self.chance, self.down = random.Random(2), False

    def __call__(self, environ, start_response):
        if self.down or self.chance.random() < self.share:
            self.faults += 1
            body = b"<Error><Code>InternalError</Code><Message>injected</Message></Error>"
            start_response("500 Internal Server Error", [("Content-Length", str(len(body)))])
            return [body]
        return self.app(environ, start_response)


class Bucket(NamedTuple):
    """The server, a client of it, and its bucket ``photos``."""

    app: Faulty
    client: object
    address: str

    def place(self, name):
        """Return the URI of a prefix."""
        query = f"?scheme=http&endpoint_override={self.address}&region=us-east-1"
        return f"s3://photos/{name}{query}"

    def put(self, key, body):
        self.client.put_object(Bucket="photos", Key=key, Body=body)

    def remove(self, key):
        self.client.delete_object(Bucket="photos", Key=key)


@contextmanager
def served_bucket():
    """Serve an empty bucket; this process has its keys, and waits little between attempts."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"127.0.0.1:{server.server_port}"
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{address}", **keys)
    client.create_bucket(Bucket="photos")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", "k")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "s")
            patch.setenv("AWS_ENDPOINT_URL", f"http://{address}")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            patch.setattr(storage, "FIRST_PAUSE", 0.01)
            yield Bucket(app, client, address)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

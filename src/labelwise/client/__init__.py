"""A typed client of ``labelwise serve``, without torch.

    server = Client("http://127.0.0.1:8000", token="...")
    server.predict(["a.jpg", "b.jpg"])["results"][0]["decided"]

One method per request of the API, made from the server's own description at ``/openapi.json``.
"""

from labelwise.client.connection import Connection, Picture, ServerError
from labelwise.client.generated import Client

__all__ = ["Client", "Connection", "Picture", "ServerError"]

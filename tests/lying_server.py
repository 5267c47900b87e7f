"""A server on the loopback address that answers with given bytes, whatever is asked."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


@contextmanager
def answering(*answers):
    """Yield the address of a server that gives these answers, one after another."""
    left = list(answers)

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self):
            self.wfile.write(left.pop(0))

        def log_message(self, *_):
            return

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/a"
        finally:
            server.shutdown()
            thread.join()

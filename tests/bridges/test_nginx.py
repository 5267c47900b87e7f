"""nginx with ``deploy/nginx.conf`` before the server. Oracles: nginx, and the server alone."""

import http.client
import shutil
import socket
import ssl
import subprocess
from getpass import getuser
from pathlib import Path

import pytest
from patience import PATIENCE, wait_until
from search_setup import save_model
from web_setup import encoded, form, running, status_of, upload_head

CONFIG = Path(__file__).parents[2] / "deploy" / "nginx.conf"

pytestmark = [
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def is_listening(port):
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The server behind nginx: (port of nginx, port of the server)."""
    folder = tmp_path_factory.mktemp("nginx")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj"]
    made += ["/CN=photos.example", "-keyout", key, "-out", certificate]
    subprocess.run(made, check=True, capture_output=True)
    options = {"decoders": 0, "hosts": ("photos.example",), "trusted_proxies": ("127.0.0.1",)}
    with running(save_model(folder / "tiny"), **options) as server:
        port = free_port()
        site = CONFIG.read_text().replace("listen 443", f"listen 127.0.0.1:{port}")
        site = site.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        site = site.replace("/etc/ssl/photos.example.pem", str(certificate))
        site = site.replace("/etc/ssl/photos.example.key", str(key))
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {folder / kind};\n" for kind in kinds)
        config = folder / "nginx.conf"
        config.write_text(
            f"daemon off; user {getuser()}; pid {folder}/pid; error_log {folder}/error.log;\n"
            "worker_rlimit_nofile 20000; events { worker_connections 8192; }\n"
            f"http {{ access_log off;\n{temporary}{site}}}\n"
        )
        tried = subprocess.run(["nginx", "-t", "-c", config], capture_output=True, text=True)
        assert tried.returncode == 0, tried.stderr
        with subprocess.Popen(["nginx", "-c", config]) as nginx:
            try:
                wait_until(lambda: is_listening(port))
                yield port, server
            finally:
                nginx.terminate()


def request(port, method, path, body=None, **headers):
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    line = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=trusting)
    try:
        line.request(method, path, body, {"Host": "photos.example", **headers})
        with line.getresponse() as answer:
            return answer.status, answer.read()
    finally:
        line.close()


def test_pictures_are_answered_as_without_it(served):
    port, server = served
    body, kind = form(("a.png", encoded()))
    behind = request(port, "POST", "/api/v1/predict", body, **{"Content-Type": kind})
    assert behind == (200, server.upload(("a.png", encoded()))[2])
    large, kind = form(("a.bmp", encoded("BMP", (2000, 1500))))  # waits in a file of nginx
    assert request(port, "POST", "/api/v1/predict", large, **{"Content-Type": kind})[0] == 200


def test_the_thumbnails_of_a_page_come_at_once(served):
    port, _ = served
    burst = {request(port, "GET", "/health/live")[0] for _ in range(150)}
    assert burst == {200}  # a page of thumbnails asks for as many


def test_who_sends_a_body_slowly_reaches_only_nginx(served):
    port, server = served
    held = []
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    for _ in range(20):
        line = trusting.wrap_socket(socket.create_connection(("127.0.0.1", port), PATIENCE))
        head = upload_head(1000).replace(b"localhost", b"photos.example")
        line.sendall(head + b"x")
        held.append(line)
    assert server.app.service.queue.under_way == 0
    assert request(port, "GET", "/health/ready")[0] == 200
    held[0].sendall(bytes(999))
    assert status_of(held[0]) == 422  # complete, and not a picture
    for line in held:
        line.close()

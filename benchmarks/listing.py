"""Memory of listing many files: ``python benchmarks/listing.py [--files 100000] [--keys 1000000]``.

Empty files with the names of pictures are made in one folder, and in folders of a thousand. Peak
memory is what listing them adds to its process: it follows the largest folder, not the number.
A flat prefix of S3 is listed by pages (boto3) and at once (pyarrow), from a server on the loopback
address that makes up a thousand keys for each request.
"""

import argparse
import os
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from measure import measure

from labelwise.base import storage
from labelwise.shards.inputs import find_rows


def make(folder, files, each):
    for number in range(files):
        place = folder / f"{number // each:05d}"
        if number % each == 0:
            place.mkdir(parents=True)
        (place / f"{number:08d}.jpg").touch()
    return folder


def count(folder):
    return sum(1 for _ in find_rows([str(folder)]))


class MadeUp(BaseHTTPRequestHandler):
    """ListObjectsV2 over ``keys`` keys; every other request finds a folder with something in it."""

    protocol_version = "HTTP/1.1"
    keys = 0

    def do_GET(self):
        query = parse_qs(urlsplit(self.path).query)
        first = int(query.get("continuation-token", ["0"])[0])
        last = min(first + int(query.get("max-keys", ["1000"])[0]), self.keys)
        items = "".join(
            f"<Contents><Key>in/{number:012d}.jpg</Key><Size>40000</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for number in range(first, last)
        )
        more = last < self.keys
        token = f"<NextContinuationToken>{last}</NextContinuationToken>" if more else ""
        body = (
            '<?xml version="1.0"?><ListBucketResult><Name>b</Name><Prefix>in/</Prefix>'
            f"<KeyCount>{last - first}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{items}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self):
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def serve(keys, ready):
    MadeUp.keys = keys
    server = ThreadingHTTPServer(("127.0.0.1", 0), MadeUp)
    ready.send(server.server_port)
    server.serve_forever()


def list_flat_prefix(keys, paged):
    ours, theirs = get_context("fork").Pipe()
    server = get_context("fork").Process(target=serve, args=(keys, theirs), daemon=True)
    server.start()
    os.environ |= {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    options = f"scheme=http&endpoint_override=127.0.0.1:{ours.recv()}&region=us-east-1"
    client = storage.s3_client

    def listed():
        storage.s3_client = client if paged else lambda place: None
        return sum(1 for _ in storage.storage_at(f"s3://b/in?{options}").files())

    try:
        found = measure(listed)
    finally:
        server.kill()
    assert found.value == keys
    print(
        f"{keys:>9,} keys of one prefix, {'by pages' if paged else 'at once '}: "
        f"+{found.peak_mib:6.1f} MiB, {found.peak_mib * 2**20 / keys:6.1f} bytes per key, "
        f"{found.seconds:5.1f} s, {keys / found.seconds:9,.0f} keys/s"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    given = parser.parse_args()
    files = given.files
    for paged in (True, False):
        for keys in (given.keys // 10, given.keys):
            list_flat_prefix(keys, paged)
    with tempfile.TemporaryDirectory() as place:
        cases = [(files // 10, 1000), (files, 1000), (files // 10, files // 10), (files, files)]
        for number, (total, each) in enumerate(cases):
            folder = make(Path(place) / str(number), total, each)
            found = measure(lambda folder=folder: count(folder))
            assert found.value == total
            print(
                f"{total:>9,} files, {each:>7,} in a folder: +{found.peak_mib:5.1f} MiB, "
                f"{found.seconds:5.1f} s, {total / found.seconds:9,.0f} files/s"
            )


if __name__ == "__main__":
    main()

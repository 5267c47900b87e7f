"""Tags in Immich. Oracles: the labels of the index; Immich's own client, ``@immich/sdk``."""

import base64
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from http.client import parse_headers
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest
from open_indexes import open_index
from stub_immich import StubImmich, running_immich
from typed import must_run

from labelwise.contrib.immich import Immich, remove_tags
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.photos.tagging import tags_of

SDK = Path(sys.prefix, "immich")
PERSONS = "dog"  # a tag that a person gave


def checksum(path):
    return base64.b64encode(hashlib.sha1(path.read_bytes()).digest()).decode()


@pytest.fixture
def immich(library):
    """A server that has all photos but two, and one of its own; a person's tag is on the first."""
    photos = sorted((library / "photos").iterdir())
    stub = StubImmich([*map(checksum, photos[:6]), "not of the index"], page=2)
    stub.tagged[stub.tag(PERSONS)].add(next(iter(stub.photos)))
    with running_immich(stub) as stub.address:
        yield stub


@pytest.fixture
def tag(library, immich, monkeypatch):
    monkeypatch.setenv("LABELWISE_IMMICH_KEY", immich.key)

    def run(*options):
        words = ("tag", library / "index", "--immich", immich.address, *options)
        return must_run(*words, catch_exceptions=False).output

    return run


def expected(library):
    """Return the labels of each photo by its checksum, as the index gives them."""
    index = open_index(library / "index")
    paths = index.store.paths_of(range(len(index)))
    return {
        checksum(Path(paths[row][0])): {f"labelwise/{one.label}" for one in keywords}
        for row, keywords in tags_of(index, None)
    }


def changes(stub):
    return [asked[:2] for asked in stub.asked if asked[0] in ("PUT", "DELETE")]


def test_photos_get_the_labels_of_the_index_and_keep_those_of_people(library, immich, tag):
    own = expected(library)
    assert any(own.values())
    said = tag()
    for known in immich.photos.values():
        assert immich.names_of(known) - {PERSONS} == own.get(known, set())
    assert PERSONS in immich.names_of(next(iter(immich.photos.values())))
    given = sum(len(names) for known, names in own.items() if known in immich.photos.values())
    assert f"{given} tags given, 0 taken away" in said
    assert "2 photos with labels are not among its uploaded photos" in said


def test_again_it_changes_only_what_differs(immich, tag):
    tag()
    immich.asked.clear()
    assert "0 tags given, 0 taken away" in tag()
    assert changes(immich) == []
    (stranger,) = (photo for photo, known in immich.photos.items() if known == "not of the index")
    name = next(name for name in immich.tags if name.startswith("labelwise/"))
    immich.tagged[immich.tags[name]].add(stranger)
    assert "0 tags given, 1 taken away" in tag()
    assert immich.names_of("not of the index") == set()


def test_undo_removes_our_tags_alone(immich, tag):
    tag()
    ours = sum(name.startswith("labelwise") for name in immich.tags)
    assert f"{ours} tags removed" in tag("--undo")
    assert set(immich.tags) == {PERSONS}
    assert len(immich.tagged[immich.tags[PERSONS]]) == 1


def test_a_dry_run_writes_nothing(immich, tag):
    assert "dry run, nothing was written" in tag("--dry-run")
    assert changes(immich) == []
    tag()
    immich.asked.clear()
    assert "dry run, nothing was written" in tag("--undo", "--dry-run")
    assert changes(immich) == []


def test_what_is_named_next_runs_as_it_is_printed(library, immich, tmp_path):
    """A key of a file is named again; after a dry run the tags are written, then taken out."""
    (key := tmp_path / "my key").write_text(immich.key)
    words = ["tag", library / "index", "--immich", immich.address, "--immich-key-file", key]
    words.append("--dry-run")
    given = []
    for _ in range(3):
        output = must_run(*words).output
        given.append(sum(map(len, immich.tagged.values())))
        words = shlex.split(re.search("Next: labelwise (.*)", output)[1]) if len(given) < 3 else []
    assert given[0] == given[2] == 1  # the person's own
    assert given[1] > 1


def test_mistakes_get_one_sentence(immich, tag, monkeypatch):
    with pytest.raises(LabelwiseError, match="guaranteed from test photos"):
        tag("--wrong-at-most", "0.0001")
    assert changes(immich) == []
    with pytest.raises(SettingsError, match="--xmp does not apply: --immich writes to a server al"):
        tag("--xmp")
    monkeypatch.setenv("LABELWISE_IMMICH_KEY", "another-key")
    with pytest.raises(LabelwiseError, match=r"answers POST .* with 401.*; the key needs the"):
        tag()
    monkeypatch.delenv("LABELWISE_IMMICH_KEY")
    with pytest.raises(SettingsError, match="needs an API key"):
        tag()
    for address in ("immich.local", "file:///etc/passwd", "http://", "http://["):
        with pytest.raises(SettingsError, match="must look like"):
            Immich(address, "key")


@contextmanager
def hostile(respond):
    """Serve what ``respond`` writes to each request, whose first lines are kept in ``asked``."""
    asked = []

    class Handler(StreamRequestHandler):
        def handle(self):
            asked.append(self.rfile.readline().decode().rpartition(" ")[0])
            self.rfile.read(int(parse_headers(self.rfile).get("content-length", 0)))
            with suppress(OSError):
                respond(self.wfile, len(asked))

    class Server(ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield Immich(f"http://127.0.0.1:{server.server_address[1]}", "key", seconds=1), asked
        finally:
            server.shutdown()


def answer(stream, content):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    stream.write(OK + b"content-length: %d\r\n\r\n" % len(body) + body)


OK = b"HTTP/1.0 200 OK\r\n"


def page(following, items=()):
    return {"assets": {"items": list(items), "nextPage": following}}


@pytest.mark.parametrize(
    ("respond", "sentence"),
    [
        (lambda stream, _: answer(stream, page("\u00b2")), "answered with the next page '\u00b2'"),
        (lambda stream, _: answer(stream, page("1")), "answered with the next page '1'"),
        (lambda stream, n: answer(stream, page(str(n + 1))), "more than 20 pages"),
        (
            lambda stream, _: answer(stream, page(None, [{"id": "\u00e9"}])),
            "items.0.id': string",
        ),
        (lambda stream, _: answer(stream, b"[" * 100_000), "metadata: not JSON"),
        (lambda stream, _: stream.write(b"HTTP/1.0 302 F\r\nlocation: /b\r\n\r\n"), "with 302 F"),
        (lambda stream, _: stream.write(b"nonsense\r\n\r\n"), "does not answer: "),
        (lambda stream, _: stream.write(OK + b"a: b\r\n" * 200 + b"\r\n[]"), "does not answer"),
        (
            lambda stream, _: stream.write(OK + b"content-length: 9\r\n\r\n["),
            "not answer|not J",
        ),
        (lambda stream, _: answer(stream, b" " * 200_001), "more than 200,000 bytes"),
    ],
)
def test_a_hostile_server_gets_one_sentence(respond, sentence, monkeypatch):
    monkeypatch.setattr("labelwise.contrib.immich.MOST_PAGES", 20)
    with hostile(respond) as (server, asked):
        server.largest = 200_000
        with pytest.raises(LabelwiseError, match=sentence):
            list(server.photos())
        assert len(asked) <= 20


@pytest.mark.parametrize("name", ["../../albums/1", "..", "a b", "a/b", "%2e%2e", ""])
def test_an_id_is_never_a_path(name):
    tags = [{"id": name, "value": "labelwise/dog"}]
    with hostile(lambda stream, _: answer(stream, tags)) as (server, asked):
        with pytest.raises(LabelwiseError, match="id': string should match"):
            remove_tags(server)
        assert asked == ["GET /api/tags"]


ASK = """
import * as immich from "@immich/sdk";
immich.init({ baseUrl: process.argv[2] + "/api", apiKey: process.argv[3] });
const found = await immich.searchAssets(
  { metadataSearchDto: { page: 1, size: 1000, type: immich.AssetTypeEnum.Image } });
const assetIds = found.assets.items.slice(0, 2).map((one) => one.id);
const [tag] = await immich.upsertTags({ tagUpsertDto: { tags: ["labelwise/cat"] } });
await immich.bulkTagAssets({ tagBulkAssetsDto: { assetIds, tagIds: [tag.id] } });
const withTag = { page: 1, size: 1000, type: immich.AssetTypeEnum.Image, tagIds: [tag.id] };
await immich.searchAssets({ metadataSearchDto: withTag });
await immich.untagAssets({ id: tag.id, bulkIdsDto: { ids: assetIds } });
await immich.getAllTags();
await immich.deleteTag({ id: tag.id });
console.log(JSON.stringify(assetIds));
"""


def test_requests_are_those_of_immichs_own_client(immich, tmp_path):
    if shutil.which("node") is None or not (SDK / "node_modules" / "@immich").is_dir():
        pytest.skip("node and @immich/sdk are not installed; `make bridges` installs the latter")
    program = SDK / "ask.mjs"
    program.write_text(ASK)
    command = ["node", str(program), immich.address, immich.key]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs, immich.asked = immich.asked, []
    ours = Immich(immich.address, immich.key)
    ids = json.loads(done.stdout)
    assert len(ids) == 2
    next(ours.photos())
    made = ours.make_tags(["labelwise/cat"])["labelwise/cat"]
    ours.give(made, ids)
    list(ours.photos(made))
    ours.take(made, ids)
    ours.tags()
    ours.remove(made)
    assert theirs[1][2]["tags"] == ["labelwise/cat"]
    as_ours = json.loads(json.dumps(theirs).replace(theirs[2][2]["tagIds"][0], made))
    assert [list(one) for one in immich.asked] == as_ours

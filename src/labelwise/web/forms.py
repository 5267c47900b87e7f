"""The files of a form (multipart/form-data, RFC 7578), from a body that is there as a whole.

Looking for the boundary takes linear time whatever stands between, and goes piece by piece, because
a search holds the interpreter's lock until it is done.
"""

import re

from labelwise.system.text import one_line
from labelwise.web.batching import Upload
from labelwise.web.pieces import PIECE, copied, piece_starts
from labelwise.web.security import RefusedError

__all__ = ["read_form"]

BOUNDARY = re.compile(
    r';\s*boundary=(?:"([ -!#-~]{1,70})"|([^\s;,"]{1,70}))\s*(?:;|$)', re.ASCII | re.I
)
FILE_NAME = re.compile(rb';\s*filename="((?:[^"\\]|\\.)*)"|;\s*filename=([^\s;"]+)', re.I)
PART_HEAD = 4096
FIELD_BYTES = 1 << 20
NAME_LENGTH = 255


def read_form(body: bytes, content_type: str, most: int) -> list[Upload]:
    """Return the files of a form, ``most`` of them and as many other fields at most."""
    found = BOUNDARY.search(content_type)
    if found is None:
        raise _unreadable("its Content-Type names no boundary")
    mark = b"--" + (found[1] or found[2]).encode()
    at = 0 if body.startswith(mark) else _find(body, b"\r\n" + mark, 0) + 2
    if at == 1:
        raise _unreadable("the boundary does not occur in it")
    files: list[Upload] = []
    fields = 0
    while True:
        at += len(mark)
        if body.startswith(b"--", at):
            return files
        begin = body.find(b"\r\n", at, at + PART_HEAD)
        end = body.find(b"\r\n\r\n", begin, begin + PART_HEAD)
        after = _find(body, b"\r\n" + mark, end + 2)
        if min(begin, end, after) < 0 or body[at:begin].strip(b" \t"):
            raise _unreadable("a part has no head or no end")
        head = body[begin:end]
        if b"content-disposition:" not in head.lower():
            raise _unreadable("a part has no Content-Disposition")
        name = FILE_NAME.search(head)
        if name is None:
            fields += 1
            if fields > most:
                raise _unreadable(f"it may have {most} fields that are not files")
            if after - end > FIELD_BYTES:
                raise _unreadable(f"the size of a field is limited to {FIELD_BYTES:,} bytes")
        elif len(files) == most:
            raise _unreadable(f"it may have {most} files")
        else:
            content = copied(body, end + 4, after)
            files.append(Upload(_harmless(name[1] or name[2] or b""), content))
        at = after + 2


def _find(body: bytes, mark: bytes, start: int) -> int:
    for begin in piece_starts(start, len(body)):
        at = body.find(mark, begin, begin + PIECE + len(mark) - 1)
        if at >= 0:
            return at
    return -1


def _unreadable(why: str) -> RefusedError:
    return RefusedError(400, f"the form cannot be read: {why}")


def _harmless(name: bytes) -> str:
    """Return a client's file name as harmless text; it is shown and used for nothing else."""
    text = name.decode("utf-8", "replace").replace("\\", "/").rpartition("/")[2]
    return one_line(text or "picture")[:NAME_LENGTH]

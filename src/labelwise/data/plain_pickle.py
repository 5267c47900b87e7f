"""Pickles of plain values and numeric arrays, read without building or calling anything foreign.

A pickle is a program for a stack machine. This machine knows the opcodes of None, booleans,
numbers, bytes, text, lists, tuples and dictionaries. A name in the file (``numpy.ndarray``) stays
a name and a call stays a note of it; only :func:`as_array` turns the note of an array into one,
out of bytes that stand in the file and have the size that dtype and shape say. So nothing in a
file can run, reach memory that is not its own, or take more than a bounded amount of it.
"""

import codecs
import re
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_OPERATIONS = 5_000_000  # of at most 64 bytes each; CIFAR-100 has 450,000
DTYPES = re.compile(r"[|<>=]?(b1|[iu][1248]|f[248])")
ARRAY_MAKERS = {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (("multiarray", "_reconstruct"), ("numeric", "_frombuffer"))
}
MARK = object()


class PickleError(ValueError):
    """A pickle that is broken, or holds more than plain values and arrays."""


@dataclass(frozen=True)
class _Name:
    """The name of a foreign object, which is never looked up."""

    module: str
    name: str


@dataclass(eq=False)
class _Call:
    """The note that ``name`` was to be called, and the state it was to be given."""

    name: _Name
    arguments: tuple[Any, ...]
    state: Any = None


def read_pickle(content: bytes) -> Any:
    """Return the value of a pickle, protocols 0 to 5; arrays are for :func:`as_array`.

    Python 2's ``str`` comes as bytes.
    """
    machine = _Machine(content)
    try:
        return machine.run()
    except (IndexError, struct.error, KeyError, OverflowError, UnicodeError, ValueError) as error:
        if isinstance(error, PickleError):
            raise
        raise PickleError(f"the pickle is broken at byte {machine.place}") from None


def as_array(value: object) -> NDArray[Any]:
    """Return the array that a value of :func:`read_pickle` describes, or raise a PickleError."""
    if not isinstance(value, _Call):
        raise PickleError(f"an array is expected, got {type(value).__name__}")
    if value.name.name == "_frombuffer":
        data, kind, shape, order = _fields(value.arguments, 4)
    else:
        _, shape, kind, fortran, data = _fields(value.state, 5)
        order = "F" if fortran else "C"
    dtype = _dtype(kind)
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise PickleError("the shape of an array must be whole numbers")
    if not isinstance(data, bytes) or len(data) != prod(shape) * dtype.itemsize:
        raise PickleError("an array's bytes must have the size of its shape and type")
    if len(shape) > 32 or order not in ("C", "F"):
        raise PickleError("an array must have at most 32 dimensions, in order C or F")
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def _dtype(value: object) -> np.dtype[Any]:
    if not isinstance(value, _Call) or value.name != _Name("numpy", "dtype"):
        raise PickleError("an array must have a type of numbers")
    code = value.arguments[0] if value.arguments else None
    text = code.decode("latin1") if isinstance(code, bytes) else code
    if not isinstance(text, str) or not DTYPES.fullmatch(text):
        raise PickleError("an array must hold numbers")
    state = value.state
    byte_order = state[1] if isinstance(state, tuple) and len(state) > 1 else "="
    if isinstance(byte_order, bytes):
        byte_order = byte_order.decode("latin1")
    if not isinstance(byte_order, str) or byte_order not in ("<", ">", "=", "|"):
        raise PickleError("an array's byte order must be <, >, = or |")
    return np.dtype(byte_order + text.lstrip("|<>="))


def _fields(value: object, count: int) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or len(value) != count:
        raise PickleError("an array is described in a way that numpy does not use")
    return value


class _Machine:
    """The stack, the memo and the place in the file."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.encoded = 0

    def run(self) -> Any:
        for _ in range(MAX_OPERATIONS):
            code = self.take(1)
            if code == b".":
                if len(self.stack) != 1 or self.stack[0] is MARK:
                    raise PickleError("the pickle does not end with one value")
                return self.stack[0]
            if code not in OPERATIONS:
                raise PickleError(f"the pickle holds more than plain values (opcode {code!r})")
            OPERATIONS[code](self)
        raise PickleError(f"the pickle has more than {MAX_OPERATIONS:,} operations")

    def take(self, count: int) -> bytes:
        start, self.place = self.place, self.place + count
        if count < 0 or self.place > len(self.content):
            raise PickleError("the pickle is cut off")
        return self.content[start : self.place]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> bytes:
        end = self.content.find(b"\n", self.place)
        if end < 0:
            raise PickleError("the pickle is cut off")
        line = self.take(end - self.place)
        self.take(1)
        return line

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is MARK:
            raise PickleError("the pickle takes a value that is not there")
        return value

    def drop(self) -> None:
        self.pop()

    def drop_to_mark(self) -> None:
        self.to_mark()

    def skip_frame(self) -> None:
        self.take(8)  # its length: the file is in memory as a whole

    def to_mark(self) -> list[Any]:
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is MARK:
                values = self.stack[place + 1 :]
                del self.stack[place:]
                return values
        raise PickleError("the pickle takes a value that is not there")

    def top(self, kind: type) -> Any:
        value = self.stack[-1]
        if not isinstance(value, kind):
            raise PickleError("the pickle fills a value that is neither a list nor a dictionary")
        return value

    def set_items(self, pairs: list[Any]) -> None:
        target = self.top(dict)
        if len(pairs) % 2:
            raise PickleError("a dictionary must have a value for each key")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, str | bytes):
                raise PickleError(f"keys must be text, got {type(key).__name__}")
            target[key] = value

    def set_item(self) -> None:
        value = self.pop()
        self.set_items([self.pop(), value])

    def new_dict(self) -> None:
        pairs = self.to_mark()
        self.push({})
        self.set_items(pairs)

    def append(self) -> None:
        value = self.pop()
        self.top(list).append(value)

    def extend(self) -> None:
        values = self.to_mark()
        self.top(list).extend(values)

    def tuple_of(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def get(self, key: int) -> None:
        self.push(self.memo[key])

    def put(self, key: int) -> None:
        value = self.stack[-1]
        if value is MARK or key < 0:
            raise PickleError("the pickle remembers a value that is not there")
        self.memo[key] = value

    def name(self) -> None:
        module, name = self.line().decode("utf-8"), self.line().decode("utf-8")
        self.push(_Name(module, name))

    def stack_name(self) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise PickleError("a name must be text")
        self.push(_Name(module, name))

    def call(self) -> None:
        arguments, name = self.pop(), self.pop()
        if not isinstance(arguments, tuple) or not isinstance(name, _Name):
            raise PickleError("the pickle calls what is not a name")
        if (name.module, name.name) == ("_codecs", "encode"):  # how Python 3 writes bytes for 2
            if len(arguments) != 2 or not isinstance(arguments[0], str):
                raise PickleError("bytes are written in a way that Python does not use")
            self.encoded += len(arguments[0])
            if self.encoded > len(self.content):  # one text, encoded again and again
                raise PickleError("the pickle holds more bytes than it has")
            self.push(arguments[0].encode("latin1"))
        elif (name.module, name.name) in {*ARRAY_MAKERS, ("numpy", "dtype")}:
            self.push(_Call(name, arguments))
        elif (name.module, name.name) in (("__builtin__", "bytes"), ("builtins", "bytes")):
            if arguments:
                raise PickleError("bytes are written in a way that Python does not use")
            self.push(b"")
        else:
            called = f"{name.module}.{name.name}"
            raise PickleError(f"the pickle calls {called[:80]!r}")

    def build(self) -> None:
        state = self.pop()
        target = self.stack[-1]
        if not isinstance(target, _Call) or target.state is not None:
            raise PickleError("the pickle gives a state to what has none")
        target.state = state

    def integer_line(self) -> None:
        text = self.line()
        if text in (b"00", b"01"):
            self.push(text == b"01")
        else:
            self.push(int(text))

    def bytes_line(self) -> None:
        text = self.line()
        if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
            raise PickleError("text must stand in quotes")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python 2 never wrote
            self.push(codecs.escape_decode(text[1:-1])[0])

    def text(self, form: str) -> None:
        self.push(self.take(self.number(form)).decode("utf-8", "surrogatepass"))

    def octets(self, form: str) -> None:
        self.push(self.take(self.number(form)))

    def long(self, form: str) -> None:
        self.push(int.from_bytes(self.take(self.number(form)), "little", signed=True))

    def protocol(self) -> None:
        if self.number("<B") > 5:
            raise PickleError("the pickle has a protocol above 5")


OPERATIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine.protocol,
    b"\x95": _Machine.skip_frame,
    b"(": lambda m: m.push(MARK),
    b"0": _Machine.drop,
    b"1": _Machine.drop_to_mark,
    b"2": lambda m: m.push(m.stack[-1]),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"I": _Machine.integer_line,
    b"J": lambda m: m.push(m.number("<i")),
    b"K": lambda m: m.push(m.number("<B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"L": lambda m: m.push(int(m.line().removesuffix(b"L"))),
    b"\x8a": lambda m: m.long("<B"),
    b"\x8b": lambda m: m.long("<i"),
    b"F": lambda m: m.push(float(m.line())),
    b"G": lambda m: m.push(m.number(">d")),
    b"S": _Machine.bytes_line,
    b"T": lambda m: m.octets("<i"),
    b"U": lambda m: m.octets("<B"),
    b"B": lambda m: m.octets("<I"),
    b"C": lambda m: m.octets("<B"),
    b"\x8e": lambda m: m.octets("<Q"),
    b"\x96": lambda m: m.octets("<Q"),
    b"V": lambda m: m.push(m.line().decode("raw-unicode-escape")),
    b"X": lambda m: m.text("<I"),
    b"\x8c": lambda m: m.text("<B"),
    b"\x8d": lambda m: m.text("<Q"),
    b"]": lambda m: m.push([]),
    b"a": _Machine.append,
    b"e": _Machine.extend,
    b"l": lambda m: m.push(m.to_mark()),
    b")": lambda m: m.push(()),
    b"t": lambda m: m.push(tuple(m.to_mark())),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"}": lambda m: m.push({}),
    b"d": _Machine.new_dict,
    b"s": _Machine.set_item,
    b"u": lambda m: m.set_items(m.to_mark()),
    b"g": lambda m: m.get(int(m.line())),
    b"h": lambda m: m.get(m.number("<B")),
    b"j": lambda m: m.get(m.number("<I")),
    b"p": lambda m: m.put(int(m.line())),
    b"q": lambda m: m.put(m.number("<B")),
    b"r": lambda m: m.put(m.number("<I")),
    b"\x94": lambda m: m.put(len(m.memo)),
    b"c": _Machine.name,
    b"\x93": _Machine.stack_name,
    b"R": _Machine.call,
    b"b": _Machine.build,
}

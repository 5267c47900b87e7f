"""Pickles by our own machine: Python's pickle is the oracle for values, numpy for arrays.

Whatever the bytes, only a PickleError may come out, and no foreign object is built.
"""

import pickle
import struct
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.data import load
from labelwise.data.plain_pickle import OPERATIONS, PickleError, as_array, read_pickle
from labelwise.errors import DataError

TEXT = st.text(max_size=8)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(TEXT | st.binary(max_size=4), inner, max_size=4)
    ),
)
PROTOCOLS = st.integers(0, 5)


@settings(deadline=None)
@given(PLAIN, PROTOCOLS)
def test_plain_values_are_those_of_pickle(value, protocol):
    assert read_pickle(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["u1", "<i4", ">i4", "f8", "?"])
def test_arrays_are_those_of_numpy(protocol, order, kind):
    array = np.arange(12).reshape(3, 4).astype(kind, order=order)
    found = as_array(read_pickle(pickle.dumps({"data": array}, protocol))["data"])
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype


def test_an_array_written_by_python_2():
    """Opcodes of cPickle, protocol 2, as in the official files, by hand."""
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87R(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x06abcdeftb"
        b"U\x06labels](K\x04K\x02eu."
    )
    value = read_pickle(content)
    assert value[b"labels"] == [4, 2]
    assert as_array(value[b"data"]).tolist() == [[97, 98, 99], [100, 101, 102]]


class Foreign:
    def __reduce__(self):
        return print, ("called",)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_foreign_is_called(protocol, capsys):
    with pytest.raises(PickleError, match=r"calls .*print"):
        read_pickle(pickle.dumps(Foreign(), protocol))
    assert capsys.readouterr().out == ""


def array_pickle(kind: bytes, shape: bytes, data: bytes) -> bytes:
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01" + shape + b"cnumpy\ndtype\n(" + kind + b"K\x00K\x01tR"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + data + b"tb."
    )


def test_the_array_that_points_where_it_likes_is_refused():
    """The attack: objects over bytes of the file, or a shape that the bytes do not fill."""
    good = array_pickle(b"U\x02u1", b"(K\x02t", b"U\x02ab")
    assert as_array(read_pickle(good)).tolist() == [97, 98]
    for wrong in (
        array_pickle(b"U\x01O", b"(K\x01t", b"U\x08" + b"\x41" * 8),
        array_pickle(b"U\x02O8", b"(K\x01t", b"U\x08" + b"\x41" * 8),
        array_pickle(b"U\x02V8", b"(K\x01t", b"U\x08" + b"\x41" * 8),
        array_pickle(b"U\x02u1", b"(K\xfft", b"U\x02ab"),
        array_pickle(b"U\x02u1", b"(J\xff\xff\xff\xfft", b"U\x02ab"),
        array_pickle(b"U\x02u1", b"(K\x02t", b"](K\x01K\x02e"),
    ):
        with pytest.raises(PickleError):
            as_array(read_pickle(wrong))
    direct = b"cnumpy\nndarray\n((K\x01tU\x01OU\x08" + b"\x41" * 8 + b"tR."
    with pytest.raises(PickleError, match=r"calls 'numpy\.ndarray'"):
        read_pickle(direct)


def test_a_small_file_takes_little_memory_and_time():
    text = b"V" + b"x" * 100_000 + b"\np0\n"
    again = b"c_codecs\nencode\n(g0\nVlatin1\ntR0" * 20_000
    nested = b")" + b"2\x86" * 1000 + b"N\x86s."  # a key of 2^1000 entries, never looked at
    tracemalloc.start()
    for content in (text + again + b".", b"}" + nested, b"\x8e" + struct.pack("<Q", 1 << 62)):
        with pytest.raises(PickleError):
            read_pickle(content)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


OPCODES = st.lists(
    st.sampled_from(sorted(OPERATIONS)) | st.binary(min_size=1, max_size=3), max_size=30
)


@settings(max_examples=500, deadline=None)
@given(OPCODES)
def test_any_program_ends_in_a_value_or_a_sentence(codes):
    with suppress(PickleError):
        value = read_pickle(b"".join(codes) + b".")
        for part in value.values() if isinstance(value, dict) else (value,):
            as_array(part)


def test_cifar_with_a_hostile_batch_is_one_sentence(folder):
    names = {"label_names": [f"class{n}" for n in range(10)]}
    folder.text("batches.meta", pickle.dumps(names))
    for n in range(1, 6):
        folder.text(f"data_batch_{n}", pickle.dumps({"data": Foreign(), "labels": []}))
    with pytest.raises(DataError, match=r"data_batch_1: .*calls .*print"):
        load(folder.path)

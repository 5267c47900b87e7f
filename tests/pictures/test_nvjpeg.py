"""nvJPEG. Oracles: its header's struct; with a GPU, torchvision's decoder and Pillow."""

import ctypes

import numpy as np
import pytest
import torch
from test_batches import encoded

from labelwise.pictures.decode import by_pillow, plain_header
from labelwise.pictures.device import (
    _places,
    borrowed_decoder,
    decode_by_torchvision,
    hardware_decoder,
)
from labelwise.pictures.loading import Jpeg
from labelwise.pictures.worker import Entry, Kind

needs_engines = pytest.mark.skipif(
    not torch.cuda.is_available() or hardware_decoder(torch.device("cuda")) is None,
    reason="there is no GPU with JPEG engines",
)


class NvjpegImage(ctypes.Structure):
    """nvjpegImage_t, as nvjpeg.h has it."""

    _fields_ = (("channel", ctypes.c_void_p * 4), ("pitch", ctypes.c_size_t * 4))


def test_places_are_those_of_nvjpegs_struct():
    planes = torch.arange(2 * 3 * 5 * 7, dtype=torch.uint8).reshape(2, 3, 5, 7)
    places = _places(planes)
    images = (NvjpegImage * 2).from_buffer(places)
    assert ctypes.sizeof(images) == places.nbytes
    for number, image in enumerate(images):
        assert list(image.pitch) == [7, 7, 7, 0]
        assert image.channel[3] is None
        for layer in range(3):
            plane = ctypes.string_at(image.channel[layer], 5 * 7)
            assert plane == planes[number, layer].numpy().tobytes()


def test_without_a_gpu_there_is_no_decoder():
    assert hardware_decoder(torch.device("cpu")) is None


def test_a_decoder_that_is_given_back_is_lent_again_and_no_other():
    cpu = torch.device("cpu")
    with borrowed_decoder(cpu) as first, borrowed_decoder(cpu) as second:
        assert first is not second
    with borrowed_decoder(cpu) as third, borrowed_decoder(cpu) as fourth:
        assert {third, fourth} == {first, second}


def as_jpeg(place, content):
    header = plain_header(content)
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    facts = header.height, header.width, header.orientation, header.usual_coding
    return Jpeg(place, place, data, Entry(Kind.JPEG, 0, len(content), *facts))


@needs_engines
def test_pictures_are_those_of_torchvision():
    device = torch.device("cuda")
    kinds = ({"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"progressive": True})
    sizes = ((500, 375), (333, 251), (64, 48), (500, 375))
    contents = [encoded(size, 1, **kind) for size in sizes for kind in kinds]
    files = [as_jpeg(place, content) for place, content in enumerate(contents)]
    with borrowed_decoder(device) as decoder:
        taken = [file.header.usual_coding for file in files]
        assert taken == [True, True, True, False] * len(sizes)
        for _ in range(3):
            pictures, refused = decoder.decode(files)
            assert refused == []
            found = {}
            for one in pictures:
                found.update(zip(one.places, one.values.cpu(), strict=True))
            expected = decode_by_torchvision([file.content for file in files], device)
            for place, content in enumerate(contents):
                theirs = expected[place].permute(1, 2, 0).cpu()
                # torchvision takes another backend of nvJPEG with some versions of CUDA.
                assert (found[place].int() - theirs.int()).abs().float().mean() < 1
                pixels = np.asarray(by_pillow(content, "x", None)).astype(int)
                # nvJPEG doubles colours without smoothing; another photo differs by some 85 levels.
                assert np.abs(found[place].numpy() - pixels).mean() < 10


@needs_engines
def test_a_broken_file_spoils_no_other():
    whole = [encoded((60, 40), seed) for seed in range(4)]
    torn = whole[0][: -len(whole[0]) // 4] + b"\xff\xd9"  # its header is whole
    files = [
        as_jpeg(place, content) for place, content in enumerate([*whole[:2], torn, *whole[2:]])
    ]
    with borrowed_decoder(torch.device("cuda")) as decoder:
        pictures, refused = decoder.decode(files)
    places = sorted(place for one in pictures for place in one.places)
    assert {0, 1, 3, 4} <= set(places)
    assert [file.place for file in refused] == [2] * (2 not in places)

"""Memory of listing many files: ``python benchmarks/listing.py [--files 100000]``.

Empty files with the names of pictures are made in one folder, and in folders of a thousand. Peak
memory is what listing them adds to its process: it follows the largest folder, not the number.
"""

import argparse
import tempfile
from pathlib import Path

from measure import measure

from labelwise.engines.inputs import find_rows


def make(folder, files, each):
    for number in range(files):
        place = folder / f"{number // each:05d}"
        if number % each == 0:
            place.mkdir(parents=True)
        (place / f"{number:08d}.jpg").touch()
    return folder


def count(folder):
    return sum(1 for _ in find_rows([str(folder)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    files = parser.parse_args().files
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

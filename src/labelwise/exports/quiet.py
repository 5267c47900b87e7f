"""Other libraries' notes to programmers, kept from users."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from warnings import catch_warnings, simplefilter


@contextmanager
def quiet() -> Iterator[None]:
    """Run a block without warnings and without log messages below errors."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with catch_warnings():
            simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

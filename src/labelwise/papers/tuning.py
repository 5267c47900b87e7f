"""Tuning: the same number of tries for every method, judged on validation.

The first try is the recipe as given. Each further one multiplies learning rate and weight decay
by powers drawn from a Halton sequence over [1/10, 10] and [1/10, 10], and draws those of the
method's options that it gives a range for (``Method.tuning``). Other options keep their defaults.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from labelwise.methods import find_method
from labelwise.training.settings import Settings

_PRIMES = (2, 3, 5, 7, 11, 13)


def tries(settings: Settings, count: int) -> Iterator[Settings]:
    """Yield ``count`` settings to try for the method of ``settings``, the same at every call."""
    method = find_method(settings.method)
    for number in range(count):
        yield settings if number == 0 else _varied(settings, number, method.tuning)


def _varied(settings: Settings, number: int, ranges: Mapping[str, tuple[Any, ...]]) -> Settings:
    optimizer = settings.recipe.optimizer
    shares = [_halton(number, prime) for prime in _PRIMES]
    changed = {
        "lr": optimizer.lr * 10 ** (2 * shares[0] - 1),
        "weight_decay": optimizer.weight_decay * 10 ** (2 * shares[1] - 1),
    }
    drawn = {
        option: ranges[option][int(share * len(ranges[option]))]
        for option, share in zip(sorted(ranges), shares[2:], strict=False)
    }
    values = settings.model_dump(mode="json")
    values["recipe"]["optimizer"] |= changed
    values["options"] = {**drawn, **settings.options}
    return Settings(**values)


def _halton(number: int, base: int) -> float:
    """Return the Halton point of ``number`` in [0, 1): its digits in ``base``, mirrored."""
    value, scale = 0.0, 1.0
    while number:
        scale /= base
        number, digit = divmod(number, base)
        value += scale * digit
    return value

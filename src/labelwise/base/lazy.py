"""Names of a package that are imported when they are first used, so that torch is not."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def imported_later(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package, whose modules ``homes`` hold these names."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def attribute(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    return attribute

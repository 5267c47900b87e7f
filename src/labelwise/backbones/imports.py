"""Importing torchvision and timm without torch's compiler.

For two things that hardly anyone uses, importing them imports the whole compiler and SymPy, which
takes more than a second of every command that makes a network:

* ``roi_align`` takes ``is_compile_supported`` from ``torch._dynamo.utils``. A stand-in takes that
  module's place meanwhile: the function, once it is called, and whatever else is asked for come
  from the real one.
* ``torch.compiler.disable`` decorates a few functions. torch has the same decorator for its own
  modules, which waits until the function is called.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch._compile import _disable_dynamo

__all__ = ["without_compiler"]

NAME = "torch._dynamo.utils"
CALLED_LATER = "is_compile_supported"


@contextmanager
def without_compiler() -> Iterator[None]:
    """Import torchvision in the body without torch's compiler, unless that is there already."""
    if NAME in sys.modules:
        yield
        return
    stand_in, at_once = _StandIn(NAME), torch.compiler.disable
    sys.modules[NAME] = stand_in
    torch.compiler.disable = _disable_later
    try:
        yield
    finally:
        torch.compiler.disable = at_once
        stand_in.leave()


def _disable_later(
    fn: Callable[..., Any] | None = None, recursive: bool = True, *, reason: str | None = None
) -> Any:
    return _disable_dynamo(fn, recursive)


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == CALLED_LATER:
            return lambda *given: getattr(self.real(), name)(*given)
        return getattr(self.real(), name)

    def leave(self) -> None:
        """Make way for the real module."""
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]

    def real(self) -> ModuleType:
        self.leave()
        return importlib.import_module(NAME)

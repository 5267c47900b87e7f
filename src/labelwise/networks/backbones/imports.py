"""Importing torchvision and timm without torch's compiler.

For two things that hardly anyone uses, importing them imports the whole compiler and SymPy, which
takes more than a second of every command that makes a network:

* ``roi_align`` takes ``is_compile_supported`` from ``torch._dynamo.utils``. A stand-in takes that
  module's place meanwhile: the function, once it is called, and whatever else is asked for come
  from the real one.
* ``torch.compiler.disable`` decorates a function of torchvision's. Meanwhile it waits until that
  function is called.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from types import ModuleType
from typing import Any

import torch

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
    torch.compiler.disable = partial(_disabled_when_called, at_once)
    try:
        yield
    finally:
        torch.compiler.disable = at_once
        stand_in.leave()


def _disabled_when_called(
    disable: Callable[..., Any],
    fn: Callable[..., Any] | None = None,
    recursive: bool = True,
    *,
    reason: str | None = None,
) -> Callable[..., Any]:
    """Do as ``torch.compiler.disable`` does, once the function is called."""
    if fn is None:  # used as @disable(...)
        return partial(_disabled_when_called, disable, recursive=recursive, reason=reason)
    disabled = cache(partial(disable, fn, recursive, reason=reason))

    @wraps(fn)
    def called(*given: Any, **named: Any) -> Any:
        return disabled()(*given, **named)

    return called


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

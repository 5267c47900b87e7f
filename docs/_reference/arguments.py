"""A griffe extension: arguments and returns of public functions and classes on their pages.

Signatures hold names, types and defaults; what the words mean stands in ``arguments.yaml``, once.
The two become "Args" and "Returns" sections. A docstring that has its own is left as it is.
"""

import re
from pathlib import Path
from typing import Any

import griffe
import yaml

MEANINGS: dict[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
DESCRIBED = (
    *("learn.objectives", "links", "calibration", "decide", "metrics", "queries"),
    "learn.heads",
)
ROLE = re.compile(r":(?:func|class|meth|mod|attr):`~?([^`]+)`")


def meaning(owner: str, argument: str) -> str | None:
    """Return what an argument of a function or class means, or None if nobody wrote it down."""
    return MEANINGS.get(f"{owner}.{argument}", MEANINGS.get(argument))


def arguments_of(target: griffe.Function | griffe.Class) -> list[str]:
    """Return the names of the arguments that a caller gives."""
    return [each.name for each in target.parameters if each.name not in ("self", "cls")]


def exported(module: griffe.Object) -> list[str]:
    """Return the ``__all__`` of a package, or what a single file defines without an underscore."""
    if module.exports is not None:
        return list(map(str, module.exports))
    return [
        name
        for name, member in module.members.items()
        if name[0] != "_" and not member.is_alias and (member.is_function or member.is_class)
    ]


def is_described(target: griffe.Object) -> bool:
    """Return whether the words of ``arguments.yaml`` are meant for this function or class."""
    homes = tuple(f"labelwise.{home}." for home in DESCRIBED)
    return target.path.startswith(homes) and not target.name.startswith("_")


class Arguments(griffe.Extension):
    """Adds the sections while the source is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Turn Sphinx roles, which Markdown does not know, into code."""
        if obj.docstring:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Describe the arguments of a function, and say again what it returns, with its type."""
        if func.docstring and is_described(func):
            self._describe(func)
            found = re.match(r"Returns? (.+?)\.?(?:\n\n|$)", func.docstring.value, re.S)
            if found and "Returns:" not in func.docstring.value:
                returned = " ".join(found[1].split()).split(". ")[0]
                func.docstring.value += f"\n\nReturns:\n    {returned[0].upper()}{returned[1:]}."

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Describe the arguments of a class."""
        if cls.docstring and is_described(cls):
            self._describe(cls)

    def _describe(self, target: griffe.Function | griffe.Class) -> None:
        if not target.docstring or re.search(r"^Args:$", target.docstring.value, re.M):
            return
        known = [(name, meaning(target.name, name)) for name in arguments_of(target)]
        lines = [f"    {name}: {text}" for name, text in known if text]
        if lines and len(lines) == len(known):
            target.docstring.value += "\n\nArgs:\n" + "\n".join(lines)

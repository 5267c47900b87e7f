"""JSON objects that hold the sum of themselves, so that a flipped bit is found.

    sha256   of the object without this entry, its keys in order

Whoever forges a file can write the sum anew: it is there for what disks and cables do, and what is
read is checked all the same. Objects of earlier versions have none.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["summed", "without_sum"]

NAME = "sha256"


def summed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with its sum at its end."""
    return {**facts, NAME: _digest(facts)}


def without_sum(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an object without its sum, None if that is not the sum of the rest."""
    rest = {name: value for name, value in facts.items() if name != NAME}
    if NAME in facts:
        return rest if facts[NAME] == _digest(rest) else None
    *others, last = [("", None), *rest.items()]
    is_renamed = last[1] == _digest(dict(others[1:]))  # a flipped bit is in the name of the sum
    return None if is_renamed else rest


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

"""Files as whoever forges them leaves them: with other values, and no sum that would tell."""

import json
from pathlib import Path
from typing import Any


def facts_of(path: Path) -> dict[str, Any]:
    """Return what a JSON file of ours says, without its sum."""
    facts = json.loads(path.read_text())
    facts.pop("sha256", None)
    return facts


def rewrite(path: Path, **values: Any) -> None:
    """Put other values into a JSON file of ours; its sum goes."""
    path.write_text(json.dumps(facts_of(path) | values))

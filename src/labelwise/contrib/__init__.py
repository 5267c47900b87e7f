"""Readers of fields and tools, and adapters for other libraries."""

import tomllib
from pathlib import Path
from typing import Any

LABEL_NAMES: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("label_names.toml").read_text(encoding="utf-8")
)

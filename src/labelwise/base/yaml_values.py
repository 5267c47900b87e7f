"""Values as people write them: YAML files, ``key=value`` texts, and dotted keys."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from labelwise.base.files import MOST_FACTS, read_regular
from labelwise.errors import SettingsError


class _Loader(yaml.SafeLoader):
    """YAML as settings need it: 1e-3 is a number, a date is a text, nothing stands for another.

    Aliases are refused: nine lines of them can stand for a billion values.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.YAMLError(f"the alias *{event.anchor} is not allowed; write its value out")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.yaml_constructors = {  # a tag may ask for a date where the resolvers do not
    tag: constructor
    for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or not tag.endswith((":timestamp", ":binary", ":set", ":omap", ":pairs"))
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_assignments(assignments: Iterable[str]) -> dict[str, object]:
    """Return the values of ``a.b=c`` texts, read as YAML."""
    values = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise SettingsError(f"a setting must look like key=value, got {text!r}")
        try:
            is_mark = len(value) == 1 and not value.isalnum() and value != "~"  # such as a comma
            values[key] = value if is_mark else _plain(yaml.load(value, _Loader))
        except (yaml.YAMLError, RecursionError, ValueError):
            short = short_value(value)
            raise SettingsError(f"the value of {key} is not valid YAML: {short}") from None
    return values


def nested(
    values: Mapping[str, object], within: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return dotted keys as mappings in mappings, laid over those there are."""
    merged = dict(within or {})
    for key, value in values.items():
        *parents, last = key.split(".")
        place = merged
        for parent in parents:
            inner = place.get(parent)
            below: dict[str, object] = dict(inner) if isinstance(inner, Mapping) else {}
            place[parent] = place = below
        place[last] = value
    return merged


def read_yaml(file: Path) -> dict[str, object]:
    """Return the keys and values of a file, or raise SettingsError."""
    try:
        content, _ = read_regular(file, MOST_FACTS)
        values = _plain(yaml.load(content.decode("utf-8"), _Loader))
    except FileNotFoundError:
        raise SettingsError(f"{file} does not exist") from None
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise SettingsError(f"{file} is not valid YAML: it is nested too deeply") from None
    except (ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{file} must hold keys and values, got {type(values).__name__}")
    return values


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"a key must be a text, got {key!r}")
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def short_value(value: object) -> str:
    """Return a value as one line of an error, cut off where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

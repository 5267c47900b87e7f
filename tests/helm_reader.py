"""Templates of our Helm chart, rendered without Helm, which no package registry offers.

Reads as much of Go's template language as the chart uses: fields, pipelines, parentheses, ``if``,
``range``, and the functions of :data:`FUNCTIONS`. Anything else is an error.
"""

import re
from pathlib import Path

import yaml

ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[()|]|:=|,|[^\s()|,]+')


class RenderError(Exception):
    """What ``required`` and ``fail`` say, or what the chart asks for and is not known here."""


def fail(message):
    raise RenderError(message)


def in_yaml(value):
    return yaml.safe_dump(value, default_flow_style=False).rstrip()


FUNCTIONS = {
    "add": lambda one, other: int(one) + int(other),
    "and": lambda one, other: one and other,
    "fail": fail,
    "gt": lambda one, other: one > other,
    "int": int,
    "nindent": lambda count, text: "\n" + re.sub("(?m)^", " " * count, text),
    "printf": lambda form, *values: form % values,
    "quote": lambda value: '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"',
    "required": lambda message, value: value if value not in ("", None) else fail(message),
    "toYaml": in_yaml,
}


def values_of(chart, given):
    """Return the values of a chart with those given, by dotted names, laid over them."""
    values = yaml.safe_load((Path(chart) / "values.yaml").read_text())
    for name, value in given.items():
        *folders, last = name.split(".")
        place = values
        for folder in folders:
            place = place[folder]
        place[last] = value
    return values


def rendered(chart, given, name="photos", namespace="default"):
    """Return the objects of a chart, as ``helm template`` writes them."""
    facts = yaml.safe_load((Path(chart) / "Chart.yaml").read_text())
    root = {
        "Values": values_of(chart, given),
        "Chart": {"AppVersion": facts["appVersion"]},
        "Release": {"Name": name, "Namespace": namespace},
    }
    objects = []
    for file in sorted((Path(chart) / "templates").glob("*.yaml")):
        objects += [one for one in yaml.safe_load_all(text_of(file.read_text(), root)) if one]
    return objects


def text_of(template, root):
    """Return the text that a template becomes."""
    pieces, end, trim = [], 0, False
    for action in ACTION.finditer(template):
        before = template[end : action.start()]
        before = before.lstrip() if trim else before
        pieces.append(("text", before.rstrip() if action[1] else before))
        pieces.append(("action", action[2]))
        end, trim = action.end(), bool(action[3])
    rest = template[end:]
    pieces.append(("text", rest.lstrip() if trim else rest))
    done, place = block(pieces, 0, root, {"$": root})
    if place != len(pieces):
        raise RenderError("an end without a beginning")
    return done


def block(pieces, place, dot, names, *, silent=False):
    """Return the text up to the end of this block, and the place behind it."""
    text = []
    while place < len(pieces):
        kind, content = pieces[place]
        place += 1
        first, _, rest = content.partition(" ") if kind == "action" else ("", "", "")
        if kind == "text":
            text.append("" if silent else content)
        elif first == "end":
            return "".join(text), place
        elif first == "if":
            holds = not silent and bool(worth(rest, dot, names))
            inner, place = block(pieces, place, dot, names, silent=not holds)
            text.append(inner if holds else "")
        elif first == "range":
            inner, place = repeated(rest, pieces, place, dot, names, silent)
            text.append(inner)
        elif not silent:
            text.append(str(worth(content, dot, names)))
    return "".join(text), place


def repeated(words, pieces, place, dot, names, silent):
    """Return the text of a block for each item, and the place behind it."""
    variables, sign, source = words.rpartition(":=")
    found = [] if silent else worth(source, dot, names)
    text, after = [], block(pieces, place, dot, names, silent=True)[1]
    for item in found:
        own = dict(names)
        if sign:
            key, value = (one.strip() for one in variables.split(","))
            own |= {key: item, value: found[item]}
        text.append(block(pieces, place, item, own)[0])
    return "".join(text), after


def worth(words, dot, names):
    """Return the value of a pipeline."""
    tokens = WORD.findall(words)
    value, place = pipeline(tokens, 0, dot, names)
    if place != len(tokens):
        raise RenderError(f"cannot read {words!r}")
    return value


def pipeline(tokens, place, dot, names):
    passed = []
    while True:
        terms = []
        while place < len(tokens) and tokens[place] not in ("|", ")"):
            if tokens[place] == "(":
                value, place = pipeline(tokens, place + 1, dot, names)
                terms.append(value)
            else:
                terms.append(term(tokens[place], dot, names))
            place += 1
        first, *rest = terms
        value = first(*rest, *passed) if callable(first) else first
        if not callable(first) and (rest or passed):
            raise RenderError(f"{first!r} takes no arguments")
        if place == len(tokens) or tokens[place] == ")":
            return value, place
        place, passed = place + 1, [value]


def term(token, dot, names):
    if token.startswith('"'):
        return yaml.safe_load(token)
    if token.isdigit():
        return int(token)
    if token.startswith("$"):
        return names[token]
    if token == ".":
        return dot
    if token.startswith("."):
        found = dot
        for name in token[1:].split("."):
            found = found[name]
        return found
    if token not in FUNCTIONS:
        raise RenderError(f"the function {token} is not known here")
    return FUNCTIONS[token]

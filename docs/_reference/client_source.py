"""The client's source from the server's description: a type per schema, a method per request.

``client_source(GET /openapi.json)`` is ``src/labelwise/client/generated.py``; ``make client``
writes it, and a test compares the two.

    /api/v1/X and /api/v1/models/{model}/X     one method, with the model as an option
    parameters, members of a JSON body         arguments; what may be left out is None
    answers                                    TypedDicts of the same names, bytes, or None
"""

import keyword
import re
import textwrap
from graphlib import TopologicalSorter
from typing import Any

HEAD = '''"""Types and requests of the server. Made by ``make client``; changes here are lost."""

from collections.abc import Sequence
from typing import {typing}

from labelwise.client.connection import Connection, Picture, part

__all__ = ["Client"]

'''
CLIENT = '''
class Client:
    """A server that answers, one method per request of its API.

    ``Client("http://127.0.0.1:8000", token=...)``; errors are ServerError.
    """

    def __init__(
        self, address: str, token: str | None = None, *, timeout: float = 120.0, retries: int = 3
    ) -> None:
        self._server = Connection(address, token, timeout=timeout, retries=retries)
'''
OWN = "/api/v1"
TYPING = ("Any", "Literal", "NotRequired", "TypedDict", "cast")
LEFT_OUT = {"session"}  # the page's own way in: clients send the token
ONE_FORM = {"predict": "format"}  # asked for in one form, which has one type
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def client_source(described: dict[str, Any]) -> str:
    """Return the source of the client."""
    schemas = described["components"]["schemas"]
    operations = {
        operation["operationId"]: (method.upper(), path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
        if path.startswith(OWN) and operation["operationId"] not in LEFT_OUT
    }
    methods = [
        _method(name, *parts, schemas, operations.get(f"{name}_of_model"))
        for name, parts in sorted(operations.items())
        if not name.endswith("_of_model")
    ]
    used = _reached([operation for *_, operation in operations.values()], schemas)
    order = TopologicalSorter({name: sorted(_named_in(schemas[name])) for name in sorted(used)})
    types = [_typed_dict(name, schemas[name]) for name in order.static_order()]
    body = "\n".join(types) + "\n" + CLIENT + "\n" + "\n".join(methods)
    typing = [name for name in TYPING if re.search(rf"\b{name}\b", body)]
    return HEAD.replace("{typing}", ", ".join(typing)) + body


def _reached(operations: list[Any], schemas: dict[str, Any]) -> set[str]:
    """Return the names of all schemas of answers and bodies, and of those within them."""
    waiting = set().union(*(_named_in(_answers(operation)) for operation in operations))
    for operation in operations:
        if (body := _json_body(operation, schemas)) is not None:
            waiting |= _named_in(body)
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= _named_in(schemas[name]) - found
    return found


def _named_in(value: Any) -> set[str]:
    """Return the names of the schemas that a part of the description refers to."""
    if isinstance(value, dict):
        own = {value["$ref"].rpartition("/")[2]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(_named_in(one) for one in value.values()))
    if isinstance(value, list):
        return set().union(*(_named_in(one) for one in value))
    return set()


def _answers(operation: dict[str, Any]) -> list[Any]:
    good = [answer for code, answer in operation["responses"].items() if code.startswith("2")]
    return [one["schema"] for answer in good for one in answer.get("content", {}).values()]


def _type(schema: dict[str, Any]) -> str:
    """Return a schema as a type in Python."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return f"Literal[{schema['const']!r}]"
    if "enum" in schema:
        return f"Literal[{', '.join(map(repr, schema['enum']))}]"
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    kind = schema.get("type")
    if kind == "array":
        return f"list[{_type(schema.get('items', {}))}]"
    if kind == "object":
        inner = schema.get("additionalProperties", {})
        return f"dict[str, {_type(inner) if isinstance(inner, dict) else 'Any'}]"
    return PLAIN.get(str(kind), "Any")


def _typed_dict(name: str, schema: dict[str, Any]) -> str:
    lines = [f"\nclass {name}(TypedDict):", _docstring(schema.get("description", name), 4), ""]
    for member, one in schema["properties"].items():
        kind = _type(one)
        needed = member in schema.get("required", ())
        lines.append(f"    {member}: {kind if needed else f'NotRequired[{kind}]'}")
    return "\n".join(lines) + "\n"


def _docstring(text: str, indent: int) -> str:
    body = f'"""{text.strip()}'
    if "\n" in body:
        body += "\n"
    return textwrap.indent(f'{body}"""', " " * indent, lambda line: bool(line.strip()))


def _json_body(operation: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of a body of JSON, None where there is none, or pictures are sent."""
    content = operation.get("requestBody", {}).get("content", {})
    if "multipart/form-data" in content or "application/json" not in content:
        return None
    schema: dict[str, Any] = content["application/json"]["schema"]
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _method(
    name: str,
    method: str,
    path: str,
    operation: dict[str, Any],
    schemas: dict[str, Any],
    of_model: tuple[str, str, dict[str, Any]] | None,
) -> str:
    takes_pictures = "multipart/form-data" in operation.get("requestBody", {}).get("content", {})
    needed: list[str] = []
    optional: list[str] = []
    query: list[str] = []
    for one in operation.get("parameters", ()):
        given = one["name"]
        if one["in"] == "path":
            needed.append(f"{given}: {_type(one['schema'])}")
        elif ONE_FORM.get(name) != given:
            query.append(given)
            (needed if one["required"] else optional).append(_argument(given, one))
    body = _json_body(operation, schemas)
    for given, schema in (body or {"properties": {}})["properties"].items():
        is_needed = given in (body or {}).get("required", ())
        one = {"schema": schema, "required": is_needed}
        (needed if is_needed else optional).append(_argument(given, one))
    if takes_pictures:
        needed.append("pictures: Sequence[Picture]")
    if of_model is not None:
        optional.append("model: str | None = None")
    arguments = ", ".join(["self", *needed, *(["*", *optional] if optional else [])])
    kind = _answer_type(name, operation)
    asked = ", ".join(
        [
            f'"{method}"',
            "path",
            *([f"query={_dictionary(query)}"] if query else []),
            *([f"body={_dictionary(list(body['properties']))}"] if body is not None else []),
            *(["body={}"] if body is None and method == "POST" and not takes_pictures else []),
            *(["pictures=pictures"] if takes_pictures else []),
        ]
    )
    return "\n".join(
        [
            f"    def {name}({arguments}) -> {kind}:",
            _docstring(f"{operation['summary']}.", 8),
            *_path(path, of_model[1] if of_model else None),
            f"        {_returned(kind, asked)}",
            "",
        ]
    )


def _argument(name: str, one: dict[str, Any]) -> str:
    if keyword.iskeyword(name):
        raise ValueError(f"{name!r} cannot be the name of an argument")
    kind = _type(one["schema"])
    if one["required"]:
        return f"{name}: {kind}"
    return f"{name}: {kind.removesuffix(' | None')} | None = None"


def _dictionary(names: list[str]) -> str:
    return "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"


def _path(path: str, of_model: str | None) -> list[str]:
    if of_model is None:
        return [f"        path = {_filled(path)}"]
    return [
        f"        path = {_filled(path)}",
        "        if model is not None:",
        f"            path = {_filled(of_model)}",
    ]


def _filled(path: str) -> str:
    if "{" not in path:
        return f'"{path}"'
    return 'f"' + path.replace("{", "{part(").replace("}", ")}") + '"'


def _answer_type(name: str, operation: dict[str, Any]) -> str:
    if "204" in operation["responses"]:
        return "None"
    answers = _answers(operation)
    if not answers:
        return "bytes"
    if name in ONE_FORM:
        return _type(answers[0]["anyOf"][0])
    return _type(answers[0])


def _returned(kind: str, asked: str) -> str:
    if kind == "None":
        return f"self._server.ask({asked})"
    if kind == "bytes":
        return f"return self._server.ask({asked})"
    return f"return cast({kind}, self._server.json({asked}))"

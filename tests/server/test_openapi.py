"""Requests made up from the server's description: none is a 5xx. And the threads that describe."""

import json
import random
import threading
from urllib.parse import quote, urlencode

from fastapi import FastAPI
from pydantic import BaseModel
from web_setup import encoded, running

from labelwise.server import schemas

JUNK = (None, True, -(2**70), 2**70, 1e308, "", "\u202e\0x", [], [300, -1], {}, {"a": "b"})
QUERIES = ("dog, -beach", "(cat | dog)", "none", "dog>0.5", '"', "-", "&", "(", "a" * 99)
PICTURE = encoded()


def drawn(rng, schema, whole, known):
    """Return a value that fits a schema; one in four need not."""
    while "$ref" in schema:
        schema = whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if rng.random() < 0.25:
        return rng.choice(JUNK)
    if "enum" in schema or "const" in schema:
        return rng.choice(schema.get("enum") or [schema["const"]])
    if "anyOf" in schema:
        return drawn(rng, rng.choice(schema["anyOf"]), whole, known)
    kind, inner = schema.get("type"), schema.get("additionalProperties")
    if kind == "object":
        other = inner if isinstance(inner, dict) else {}
        given = schema.get("properties") or {rng.choice(known): other}
        return {name: drawn(rng, one, whole, known) for name, one in given.items()}
    if kind == "array":
        some = range(rng.randrange(4))
        return [drawn(rng, schema.get("items", {}), whole, known) for _ in some]
    plain = {"string": rng.choice(known), "integer": rng.randint(-2, 400)}
    return (plain | {"number": rng.uniform(-0.5, 1.5)}).get(kind, rng.choice(JUNK))


def test_no_request_made_up_from_the_description_breaks_the_server(server):
    whole, rng, statuses = server.get("/openapi.json"), random.Random(0), set()
    hits = server.get("/api/v1/search?q=dog&top=3")["hits"]
    known = ["dog", "cat", "row", *(hit["id"] for hit in hits), "0" * 64, "tiny", *QUERIES]
    operations = [
        (method.upper(), path, operation)
        for path, methods in whole["paths"].items()
        for method, operation in methods.items()
        if not path.endswith(("/labels", "/check/answer")) or method == "get"  # only read
    ]
    assert len(operations) >= 20
    for method, path, operation in 4 * operations:
        query, headers, body = [], {}, None
        for parameter in operation.get("parameters", ()):
            value = str(drawn(rng, parameter["schema"], whole, known))
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", quote(value, safe="") or "x")
            elif parameter["required"] or rng.random() < 0.5:
                query.append((parameter["name"], value))
        for kind, one in operation.get("requestBody", {}).get("content", {}).items():
            body = json.dumps(drawn(rng, one["schema"], whole, known)).encode()
            if kind != "application/json":
                kind = rng.choice(["image/png", "multipart/form-data; boundary=B"])
                body = rng.choice([PICTURE, PICTURE[:70], b"", b"--B--\r\n"])
            headers["Content-Type"] = rng.choice([kind, kind, kind, "text/plain"])
        target = path + (f"?{urlencode(query, errors='replace')}" if query else "")
        status, answered, content = server.send(method, target, body, headers)
        statuses.add(status)
        assert status < 500, (method, target, body, content)
        if status >= 400:
            assert answered["content-type"] == "application/problem+json", (method, target)
            assert json.loads(content)["status"] == status
    assert {200, 404, 415, 422} <= statuses


def test_the_description_is_made_in_a_thread_by_whoever_asks_first(run, monkeypatch):
    threads, describe = [], FastAPI.openapi

    def heard(app):
        threads.append(threading.current_thread().name)
        return describe(app)

    monkeypatch.setattr(FastAPI, "openapi", heard)
    with running(run, decoders=0) as server:
        assert not threads
        assert server.get("/openapi.json") == server.get("/openapi.json")
    assert {name.split(" thread")[0] for name in threads} == {"AnyIO worker"}


def test_what_is_sent_may_hold_nothing_unknown_and_answers_may_grow():
    """Oracle: pydantic's own schema of each model."""
    models = [model for model in vars(schemas).values() if isinstance(model, type)]
    models = [model for model in models if issubclass(model, BaseModel)]
    strict = {model.__name__ for model in models if model.model_config.get("extra") == "forbid"}
    assert strict - {"Strict"} == {"CorrectionsIn", "CheckIn", "CheckAnswerIn", "SessionIn"}

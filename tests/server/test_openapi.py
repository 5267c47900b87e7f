"""Requests made up from the server's own description: whatever they hold, no answer is a 5xx.

When it is made: the threads in which the framework describes.
"""

import json
import threading
from urllib.parse import quote, urlencode

from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from web_setup import encoded, running

from labelwise.server import schemas

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(0, 300), max_size=5),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
PICTURE = encoded()


def resolved(schema, whole):
    while "$ref" in schema:
        schema = whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def values(schema, whole, known):
    """Return a strategy for values that fit a schema, and for some that do not."""
    schema = resolved(schema, whole)
    if "enum" in schema or "const" in schema:
        fits = st.sampled_from(schema.get("enum") or [schema["const"]])
    elif "anyOf" in schema:
        fits = st.one_of(*(values(one, whole, known) for one in schema["anyOf"]))
    elif schema.get("type") == "object" and "properties" in schema:
        fits = st.fixed_dictionaries(
            {name: values(one, whole, known) for name, one in schema["properties"].items()}
        )
    elif schema.get("type") == "object":
        inner = schema.get("additionalProperties", {})
        fits = st.dictionaries(
            st.sampled_from(known["labels"]) | st.text(max_size=6),
            values(inner, whole, known) if isinstance(inner, dict) else JUNK,
            max_size=4,
        )
    elif schema.get("type") == "array":
        fits = st.lists(values(schema.get("items", {}), whole, known), max_size=4)
    elif schema.get("type") == "string":
        fits = st.sampled_from([*known["labels"], *known["ids"], *known["queries"]]) | st.text()
    elif schema.get("type") == "integer":
        fits = st.integers(-2, 400)
    elif schema.get("type") == "number":
        fits = st.floats(-0.5, 1.5)
    elif schema.get("type") == "null":
        fits = st.none()
    else:
        fits = JUNK
    return st.one_of(fits, fits, fits, JUNK)


def test_no_request_made_up_from_the_description_breaks_the_server(server):
    whole = server.get("/openapi.json")
    hits = server.get("/api/v1/search?q=dog&top=3")["hits"]
    known = {
        "labels": ["dog", "cat", "beach", "row"],
        "ids": [*(hit["id"] for hit in hits), "0" * 64, "tiny"],
        "queries": [*("dog, -beach", "(cat | dog)", "none", "dog>0.5", '"'), *"-&(", "a" * 99],
    }
    operations = []  # with their strategies, which are made once
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            if (method == "put" and path.endswith("/labels")) or path.endswith("/check/answer"):
                continue  # this library is only read
            parameters = [
                (parameter, values(parameter["schema"], whole, known))
                for parameter in operation.get("parameters", ())
            ]
            content = operation.get("requestBody", {}).get("content", {})
            bodies = {kind: values(one["schema"], whole, known) for kind, one in content.items()}
            operations.append((method, path, parameters, bodies))
    assert len(operations) >= 20
    statuses = set()

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data):
        method, path, parameters, bodies = data.draw(st.sampled_from(operations))
        query = []
        for parameter, fitting in parameters:
            value = data.draw(fitting, parameter["name"])
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", quote(str(value), safe="") or "x")
            elif parameter["required"] or data.draw(st.booleans()):
                query.append((parameter["name"], str(value)))
        headers, body = {}, None
        for kind, fitting in bodies.items():
            if kind == "application/json":
                body = json.dumps(data.draw(fitting)).encode()
            else:
                kind = data.draw(st.sampled_from(["image/png", "multipart/form-data; boundary=B"]))
                body = data.draw(st.sampled_from([PICTURE, PICTURE[:70], b"", b"--B--\r\n"]))
            headers["Content-Type"] = data.draw(st.sampled_from([kind, kind, kind, "text/plain"]))
        target = path + (f"?{urlencode(query, errors='replace')}" if query else "")
        status, answered, content = server.send(method.upper(), target, body, headers)
        statuses.add(status)
        assert status < 500, (method, target, body, content)
        if status >= 400:
            assert answered["content-type"] == "application/problem+json", (method, target)
            assert json.loads(content)["status"] == status

    check()
    assert {200, 404, 422} <= statuses  # 415 comes too, but not in every draw


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

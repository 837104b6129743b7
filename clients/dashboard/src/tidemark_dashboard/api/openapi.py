"""The OpenAPI document of the API, from its resources and the classes of the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from tidemark_dashboard.api import BASE, EVENTS
from tidemark_dashboard.api.documents import Schemas
from tidemark_dashboard.api.parameters import Parameter
from tidemark_dashboard.api.problems import MEDIA, TITLES
from tidemark_dashboard.api.resources import RESOURCES, Resource

DESCRIPTION = (
    "The values that Tidemark keeps in Redis. Times are event times in milliseconds since 1970, UTC; `updated` is the writer's "
    "clock. A member without a value is left out. schemas/redis.md has the meaning of every member."
)
_STREAM = (
    "Server-sent events: `answer` has the answer now and again each time it has changed, at most once a second; `freshness` says "
    "whether values are current; `problem` has a problem that came after the first answer."
)
_PROBLEMS: Mapping[int, str] = {
    400: "The request is wrong",
    401: "The token is missing or wrong",
    404: "There is no such value, view or measure",
    429: "Too many wrong tokens",
    503: "Redis does not answer, or has no values yet",
}


@cache
def openapi() -> dict[str, Any]:
    """The document, of OpenAPI 3.1."""
    schemas = Schemas()
    paths: dict[str, Any] = {}
    for each in RESOURCES:
        paths[f"{BASE}/{each.name}"] = {"get": _operation(each, schemas)}
        paths[f"{EVENTS}/{each.name}"] = {"get": _stream(each)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemark",
            "version": version("tidemark-dashboard"),
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": {**dict(sorted(schemas.by_name.items())), "Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(resource: Resource, schemas: Schemas) -> dict[str, Any]:
    content = {"application/json": {"schema": _shape(resource.shape, schemas)}}
    codes = [each for each in _PROBLEMS if each != 404 or resource.may_lack or resource.parameters]
    return {
        "operationId": resource.name,
        "summary": resource.summary,
        "description": resource.text,
        "parameters": [_parameter(each) for each in resource.parameters],
        "responses": {"200": {"description": resource.summary, "content": content}, **_problems(codes)},
    }


def _stream(resource: Resource) -> dict[str, Any]:
    content = {"text/event-stream": {"schema": {"type": "string"}}}
    return {
        "operationId": f"follow_{resource.name}",
        "summary": f"{resource.summary}, as they change",
        "description": _STREAM,
        "parameters": [_parameter(each) for each in resource.parameters],
        "responses": {
            "200": {"description": "Events, without an end", "content": content},
            **_problems(list(_PROBLEMS)),
        },
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": parameter.name,
        "in": "query",
        "description": parameter.text,
        "required": parameter.is_required,
        "schema": parameter.schema(),
    }
    if parameter.example:
        found["example"] = [parameter.example] if parameter.is_repeated else parameter.example
    return found


def _problems(codes: Sequence[int]) -> dict[str, Any]:
    content = {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {str(code): {"description": _PROBLEMS[code], "content": content} for code in codes}


def _shape(shape: Any, schemas: Schemas) -> dict[str, Any]:
    """The schema of an answer; a member of the shape whose name ends with "?" may be left out."""
    if isinstance(shape, Mapping):
        members = {name.removesuffix("?"): _shape(each, schemas) for name, each in shape.items()}
        required = [name for name in shape if not name.endswith("?")]
        return {"type": "object", "properties": members, "required": required}
    if isinstance(shape, list):
        return {"type": "array", "items": _shape(shape[0], schemas)}
    return schemas.of(shape)


_PROBLEM: Mapping[str, Any] = {
    "type": "object",
    "description": "RFC 9457. `detail` names the thing and its place.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string", "description": "the address that was asked"},
        "code": {"type": "string", "enum": sorted(TITLES)},
        "parameter": {"type": "string", "description": "the parameter that is wrong"},
        "limit": {"type": "integer"},
        "remedy": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "instance", "code"],
}

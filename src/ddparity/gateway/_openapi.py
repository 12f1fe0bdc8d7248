"""The OpenAPI document, narrowed to what this gateway takes: its engines, its slots, its entries, its variables."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ddparity.gateway._entries import WORKLOADS
from ddparity.gateway._request import MAX_WORLD_SIZE, JobRequest
from ddparity.gateway._service import Service

_STRUCTS: set[type] = set()
"""The records that answers consist of, beside pydantic's models."""
_REFERENCE = "#/components/schemas/{name}"
_SUBMIT = "/api/v1/jobs/submit"
_QUERY = ("job_id", "world_size", "batch_size")
_BODY = "Anything else that a job may have. The three of the query may stand here instead; the query goes first."


def documented(kind: type, description: str) -> dict[int | str, dict[str, Any]]:
    """Return how a route describes that it answers with a record of this kind."""
    _STRUCTS.add(kind)
    schema = {"$ref": _REFERENCE.format(name=kind.__name__)}
    return {200: {"description": description, "content": {"application/json": {"schema": schema}}}}


def install_openapi(app: FastAPI, service: Service) -> None:
    """Have the application describe itself, once it is asked to."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _describe_submit(document, service)
            document["components"]["schemas"] |= _struct_schemas()
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _struct_schemas() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(
        sorted(_STRUCTS, key=lambda kind: kind.__name__), ref_template=_REFERENCE
    )
    return {name: _nullable(schema) for name, schema in schemas.items()}


def _nullable(schema: Any) -> Any:
    """Return a schema whose numbers may be null: what is not finite has no number in JSON."""
    if isinstance(schema, list):
        return [_nullable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _nullable(value) for key, value in schema.items()}
    return {**made, "type": ["number", "null"]} if made.get("type") == "number" else made


def _describe_submit(document: dict[str, Any], service: Service) -> None:
    properties = _narrowed(JobRequest.model_json_schema()["properties"], service)
    call = document["paths"][_SUBMIT]["post"]
    call["parameters"] = [
        {
            "name": name,
            "in": "query",
            "required": True,
            "schema": {key: value for key, value in properties[name].items() if key not in ("description", "examples")},
            "description": properties[name]["description"],
            "example": properties[name]["examples"][0],
        }
        for name in _QUERY
    ]
    settings = {name: schema for name, schema in properties.items() if name not in _QUERY}
    document["components"]["schemas"]["JobSettings"] = {
        "title": "JobSettings",
        "type": "object",
        "description": _BODY,
        "properties": settings,
        "additionalProperties": False,
    }
    reference = {"$ref": "#/components/schemas/JobSettings"}
    call["requestBody"] = {"required": False, "content": {"application/json": {"schema": reference}}}


def _narrowed(properties: dict[str, Any], service: Service) -> dict[str, Any]:
    local_only = list(service.engines) == ["local"]
    properties["world_size"]["maximum"] = service.most_slots if local_only else MAX_WORLD_SIZE
    properties["engine"]["enum"] = list(service.engines)
    if local_only:
        properties["nodes"]["maximum"] = 1
    if not service.settings.roots:
        properties["entry"] = {**properties["entry"], "enum": list(WORKLOADS), "examples": ["digits"]}
    names = [name for name in service.settings.allowed_env if "*" not in name]
    properties["env"]["propertyNames"] = {"enum": names}
    return properties

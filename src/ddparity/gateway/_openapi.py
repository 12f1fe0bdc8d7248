"""The OpenAPI document, narrowed to what this gateway takes: its engines, its slots, its entries, its variables."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ddparity.gateway._entries import WORKLOADS
from ddparity.gateway._request import MAX_WORLD_SIZE, JobRequest
from ddparity.gateway._service import Service

_SUBMIT = "/api/v1/jobs/submit"
_QUERY = ("job_id", "world_size", "batch_size")
_BODY = "Anything else that a job may have. The three of the query may stand here instead; the query goes first."


def install_openapi(app: FastAPI, service: Service) -> None:
    """Have the application describe itself, once it is asked to."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _describe_submit(document, service)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


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

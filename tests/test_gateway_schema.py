"""The OpenAPI document against the gateway, by schemathesis: every call, valid and not, keeps what it says."""

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("schemathesis")

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.generation import GenerationMode

from ddparity.gateway._request import JOB_ID_PATTERN, JobRequest
from ddparity.gateway._settings import Settings
from ddparity.gateway.app import create_app

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
QUICK = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
CALLS = [
    ("POST", "/api/v1/jobs/submit"),
    ("GET", "/api/v1/jobs/status/{job_id}"),
    ("GET", "/api/v1/jobs"),
    ("POST", "/api/v1/jobs/{job_id}/cancel"),
    ("GET", "/api/v1/jobs/{job_id}/events"),
    ("GET", "/api/v1/jobs/{job_id}/metrics"),
    ("GET", "/api/v1/jobs/{job_id}/verdict"),
    ("GET", "/api/v1/jobs/{job_id}/logs"),
    ("GET", "/api/v1/jobs/{job_id}/logs/{rank}"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
]
"""All but the stream, which would be read to its end."""


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    store: Path = tmp_path_factory.mktemp("schema")
    app = create_app(Settings.load(store, paused=True, rate_per_s=1e9, allowed_hosts=["*"]))
    service = app.state.service
    service.start()
    service.submit(JobRequest(job_id="0", world_size=1, batch_size=1), "local")
    yield schemathesis.openapi.from_asgi("/openapi.json", app)
    service.stop()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
@pytest.mark.parametrize(("method", "path"), CALLS, ids=[f"{method} {path}" for method, path in CALLS])
def test_the_document_is_kept(schema: Any, method: str, path: str, mode: Any) -> None:
    if mode is GenerationMode.NEGATIVE and path in ("/healthz", "/metrics"):
        return  # there is nothing to be wrong about

    @QUICK
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def keeps(case: Any) -> None:
        if path.endswith("/submit") and re.match(JOB_ID_PATTERN, str((case.query or {}).get("job_id", ""))):
            case.query["job_id"] = uuid.uuid4().hex  # a name that is there already is a 400, as it should be
        case.call_and_validate()

    keeps()


def test_no_call_is_left_out(schema: Any) -> None:
    documented = {(result.ok().method.upper(), result.ok().path) for result in schema.get_all_operations()}
    assert documented - {("GET", "/api/v1/jobs/{job_id}/logs/{rank}/stream")} == set(CALLS)

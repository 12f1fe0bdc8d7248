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
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from ddparity.gateway._request import JOB_ID_PATTERN, JobRequest
from ddparity.gateway._settings import Settings
from ddparity.gateway.app import create_app
from ddparity.trials._ladders import LadderResult, RungResult
from gateway_trials import CONTROL, SUMMED, write

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
    ("GET", "/api/v1/trials"),
    ("GET", "/api/v1/trials/{trial_id}"),
    ("GET", "/api/v1/trials/{trial_id}/check"),
    ("GET", "/api/v1/trials/{trial_id}/memory"),
    ("GET", "/api/v1/trials/{trial_id}/communication"),
    ("GET", "/api/v1/compare"),
    ("GET", "/api/v1/ladders"),
    ("GET", "/api/v1/ladders/{name}"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
]
"""All but the stream, which would be read to its end."""
THERE: dict[str, str] = {}
"""What the store holds, so that not every call is about nothing."""
RUNG = RungResult(number=0, title="one process", status="PASS", finding={"step": 0, "cause": {"code": "x"}})


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    store: Path = tmp_path_factory.mktemp("schema")
    app = create_app(Settings.load(store, paused=True, rate_per_s=1e9, allowed_hosts=["*"]))
    service = app.state.service
    service.start()
    service.submit(JobRequest(job_id="0", world_size=1, batch_size=1), "local")
    THERE.update(control=write(store, CONTROL, "single"), candidate=write(store, SUMMED, "ddp"), name="climb")
    with service.ladders.climbing("climb"):
        service.ladders.write(LadderResult(name="climb", status="PASS", rungs=[RUNG]))
    yield schemathesis.openapi.from_asgi("/openapi.json", app)
    service.stop()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
@pytest.mark.parametrize(("method", "path"), CALLS, ids=[f"{method} {path}" for method, path in CALLS])
def test_the_document_is_kept(schema: Any, method: str, path: str, mode: Any) -> None:
    if mode is GenerationMode.NEGATIVE and path in ("/healthz", "/metrics"):
        return  # there is nothing to be wrong about

    @QUICK
    @given(case=schema[path][method].as_strategy(generation_mode=mode), real=st.booleans())
    def keeps(case: Any, real: bool) -> None:
        if mode is GenerationMode.POSITIVE and real:
            _mean_what_is_there(case)
        if path.endswith("/submit") and re.match(JOB_ID_PATTERN, str((case.query or {}).get("job_id", ""))):
            case.query["job_id"] = uuid.uuid4().hex  # a name that is there already is a 400, as it should be
        case.call_and_validate()

    keeps()


def _mean_what_is_there(case: Any) -> None:
    for values in (case.path_parameters or {}, case.query or {}):
        for name in values.keys() & {*THERE, "trial_id"}:
            values[name] = THERE["candidate" if name == "trial_id" else name]


def test_no_call_is_left_out(schema: Any) -> None:
    documented = {(result.ok().method.upper(), result.ok().path) for result in schema.get_all_operations()}
    assert documented - {("GET", "/api/v1/jobs/{job_id}/logs/{rank}/stream")} == set(CALLS)

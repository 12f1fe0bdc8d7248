"""Whether the gateway works, and its numbers for Prometheus."""

import time
from collections.abc import Iterator
from importlib import metadata

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from ddparity.gateway._api import ANSWERS
from ddparity.gateway._auth import Reader, TheService, service_of
from ddparity.gateway._service import Service
from ddparity.gateway._views import Health

router = APIRouter(tags=["operation"])
_STUCK_SECONDS = 60.0


class Collector:
    """The numbers of a gateway, read from its database when Prometheus asks."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield jobs by state, slots by use, and when the loop was last alive."""
        jobs = GaugeMetricFamily("ddparity_jobs", "Jobs by state.", labels=["state"])
        for state, count in self._service.jobs.counts().items():
            jobs.add_metric([state.value], count)
        yield jobs
        slots = GaugeMetricFamily("ddparity_slots", "Device slots by use.", labels=["use"])
        free = len(self._service.slots.free())
        slots.add_metric(["free"], free)
        slots.add_metric(["taken"], max(0, len(self._service.declared) - free))
        yield slots
        beat = self._service.dispatcher.beat
        yield GaugeMetricFamily("ddparity_dispatcher_beat_seconds", "When the dispatcher last ran.", value=beat)


@router.get("/healthz", response_model=Health, responses={503: {"model": Health, "description": "It does not work."}})
def healthz(request: Request) -> JSONResponse:
    """Return whether the gateway works; needs no token and tells nothing about jobs."""
    service = service_of(request)
    alive = time.time() - service.dispatcher.beat < _STUCK_SECONDS
    word = ("leads" if service.dispatcher.leads else "follows") if alive else "stuck"
    body = Health(
        status="ok" if alive else "failing",
        dispatcher=word,
        slots=len(service.declared),
        version=metadata.version("ddparity"),
    )
    return JSONResponse(body.model_dump(), 200 if alive else 503)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"description": "Prometheus's text format.", "content": {"text/plain": {}}},
        401: ANSWERS[401],
        403: ANSWERS[403],
    },
)
def prometheus(service: TheService, _caller: Reader) -> Response:
    """Return the gateway's numbers for Prometheus."""
    registry = CollectorRegistry()
    registry.register(Collector(service))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

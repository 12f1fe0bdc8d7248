"""The web application: ``create_app(settings)`` puts the gateway's calls and pages together."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import metadata

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from ddparity.gateway import (
    _api,
    _health,
    _ladder_api,
    _ladder_pages,
    _log_api,
    _pages,
    _trial_api,
    _trial_pages,
)
from ddparity.gateway._errors import install_errors
from ddparity.gateway._openapi import install_openapi
from ddparity.gateway._rendering import STATIC, problem_page
from ddparity.gateway._service import Service
from ddparity.gateway._settings import Settings
from ddparity.gateway._shield import Shield

DESCRIPTION = """
Training jobs over HTTP, apart from the process groups they start. A job's state is true whatever is killed: it ends
only when no process of it is left. The words `nan`, `inf` and `-inf` stand for metrics that are no finite numbers.
"""


def create_app(settings: Settings) -> FastAPI:
    """Return the application of one gateway.

    Raises:
        UsageError: The database or the store cannot be used.
    """
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        await run_in_threadpool(service.start)
        try:
            yield
        finally:
            app.state.stopping = True
            await run_in_threadpool(service.stop)

    app = FastAPI(
        title="ddparity gateway",
        version=metadata.version("ddparity"),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.state.remembered = {}
    app.state.num_streams = 0
    app.state.stopping = False
    install_errors(app, problem_page)
    install_openapi(app, service)
    for module in (_api, _log_api, _trial_api, _ladder_api, _health, _pages, _trial_pages, _ladder_pages):
        app.include_router(module.router)
    app.mount("/static", STATIC)
    app.add_middleware(Shield, settings=settings)
    return app

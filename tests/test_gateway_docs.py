"""The pages of the gateway name what there is: settings, fields, calls, states, and tests that are there."""

import re
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from ddparity.gateway._request import JobSettings
from ddparity.gateway._settings import Settings
from ddparity.gateway._states import State
from ddparity.gateway.app import create_app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
THREATS = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(Settings.model_fields) - {"store"}))
def test_every_setting_stands_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", sorted(JobSettings.model_fields))
def test_every_field_of_a_job_stands_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("state", sorted({state.shown for state in State}))
def test_every_state_stands_on_the_page(state: str) -> None:
    assert f"| {state} |" in PAGE


def test_every_call_stands_on_the_page(tmp_path: Path) -> None:
    app = create_app(Settings.load(tmp_path))
    for path in app.openapi()["paths"]:
        tail = path.removeprefix("/api/v1/jobs")
        assert path in PAGE or tail in PAGE or tail.rpartition("{job_id}")[2] in PAGE, path


def test_what_the_threat_model_points_at_is_there() -> None:
    for name in re.findall(r"`(test_\w+\.py)`", THREATS):
        assert (ROOT / "tests" / name).is_file(), name
    for page in (PAGE, THREATS):
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", page):
            assert (ROOT / "docs" / link).is_file(), link

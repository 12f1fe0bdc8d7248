"""The pages about trials, comparisons and ladders in a real browser: from a job to the parameter that deviates."""

import json
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright")

from playwright.sync_api import Browser, Page, expect

import gateway_trials as made
from ddparity.trace import TrialStatus
from ddparity.trials import Store
from ddparity.trials._ladders import LadderResult, Ladders, RungResult
from gateway_harness import Gateway
from test_gateway_pages import CHROMIUM, LOW_CONTRAST, browser, page

__all__ = ["browser", "page"]
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's Chromium: apt-get install chromium"),
]
WIDE, NARROW = 1280, 390


class Shown:
    """A gateway with a job, its trials, a trial that hangs, and ladders; and the addresses of all its pages."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, store = gateway, gateway.store
        gateway.submit("faulty")
        self.control = made.write(store, made.CONTROL, "gate-aaaaaaaaaaaa-bbbbbbbb")
        training = made.give(store, "faulty", "gate-aaaaaaaaaaaa-bbbbbbbb")
        self.training = made.write(store, made.SUMMED, training, against=self.control)
        self.hangs = made.write(store, made.SUMMED, "hangs", status=TrialStatus.RUNNING, ended=None)
        for path in (store / "trials" / self.hangs / "comm").iterdir():
            path.unlink()
        made.ring(store / "trials" / self.hangs, 0, 3, ended=False)
        kept = Ladders(Store(store))
        for status in ("DEVIATES", "PASS", "RUNNING"):
            with kept.climbing(status.lower()):
                kept.write(_ladder(status, self.control, self.training))
        pair = f"control={self.control}&candidate={self.training}"
        trials = [f"/trials/{trial}{part}" for trial in (self.training, self.hangs) for part in made.PAGES]
        ladders = [f"/ladders/{name}" for name in ("deviates", "pass", "running")]
        self.pages = [
            "/jobs/faulty",
            "/trials",
            "/trials?prefix=none",
            *trials,
            f"/trials/{self.control}",
            f"/compare?{pair}",
            "/compare",
            "/ladders",
            *ladders,
            "/trials/nobody",
        ]


def _ladder(status: str, control: str, trial: str) -> LadderResult:
    finding = {"step": 0, "phase": "backward", "site": "synced_gradient", "name": "2.weight", "next": "Look. Then: x"}
    finding["cause"] = {"code": "grad.summed", "text": "Summed, not averaged.", "confidence": "proved"}
    rungs = [
        RungResult(number=0, label="0", title="one process, run twice", status="PASS", trial=control, seconds=3.0),
        RungResult(number=2, label="2b", title="the arithmetic of 2 ranks", status="SKIPPED", reason="no --recipe"),
        RungResult(number=4, label="4", title="two processes", status=status, trial=trial, change="world_size 1 -> 2"),
        RungResult(number=5, label="5", title="4 processes", status="NOT_REACHED"),
    ]
    found = LadderResult(name=status.lower(), status=status, control=control, rungs=rungs, again="ddparity ladder")
    if status == "DEVIATES":
        rungs[2].finding = finding
        found.stopped_at, found.variable, found.meaning = 4, "world_size", "communication"
        found.next = f"ddparity compare {control} {trial}"
    return found


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    gateway = Gateway(tmp_path_factory.mktemp("shown") / "store", "--paused").start()
    try:
        yield Shown(gateway)
    finally:
        gateway.stop()


def test_from_a_job_to_its_trial_to_the_comparison_to_the_parameter(shown: Shown, page: Page) -> None:
    page.goto(f"{shown.gateway.url}/")
    page.get_by_role("link", name="faulty").click()
    page.get_by_role("link", name="training").click()
    expect(page.locator("h1")).to_have_text("Training of faulty")
    expect(page.get_by_role("row", name="0 of 2")).to_contain_text("✓ FINISHED")
    page.get_by_role("link", name="Hold it against its control").click()
    expect(page.locator(".locus").first).to_contain_text("2.weight")
    expect(page.locator(".locus").first).to_contain_text("factor: 2")
    expect(page.get_by_role("row", name="2.weight").locator("td.first").first).to_contain_text("first")
    page.get_by_role("link", name="memory").click()
    expect(page.locator("figcaption").first).to_contain_text("memory:held")
    page.get_by_role("link", name="communication").click()
    expect(page.get_by_role("row", name="world all_reduce")).to_contain_text("float32")
    assert page.problems == []
    page.get_by_role("link", name="as JSON").click()
    assert json.loads(page.locator("pre").first.inner_text())["trial"] == shown.training


def test_where_the_ranks_of_a_run_that_hangs_are(shown: Shown, page: Page) -> None:
    page.goto(f"{shown.gateway.url}/trials/{shown.hangs}/communication")
    expect(page.locator("main")).to_contain_text("No trace of rank 1, 2 of 3.")
    expect(page.get_by_role("row", name="0 vm").or_(page.get_by_role("row").nth(1))).to_contain_text("▶ still in it")
    assert page.problems == []


def test_from_a_ladder_to_the_rung_that_deviates(shown: Shown, page: Page) -> None:
    page.goto(f"{shown.gateway.url}/")
    page.get_by_role("link", name="Ladders").click()
    expect(page.get_by_role("row", name="deviates")).to_contain_text("✗ DEVIATES")
    page.get_by_role("link", name="deviates").click()
    expect(page.locator("main")).to_contain_text("at rung 4, where world_size changes")
    expect(page.get_by_label("Next command")).to_contain_text(f"ddparity compare {shown.control}")
    page.get_by_role("link", name="the rung against the control").click()
    expect(page.locator(".locus").first).to_contain_text("2.weight")
    assert page.problems == []


def test_two_trials_are_chosen_from_lists(shown: Shown, page: Page) -> None:
    page.goto(f"{shown.gateway.url}/trials")
    page.get_by_role("link", name="Compare two").click()
    page.get_by_label("Control").select_option(shown.control)
    page.get_by_label("Candidate").select_option(shown.training)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".locus").first).to_contain_text("2.weight")
    assert page.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_all_fits(shown: Shown, browser: Browser, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = browser.new_context(color_scheme=scheme, bypass_csp=True).new_page()
    for path in shown.pages:
        page.set_viewport_size({"width": WIDE, "height": 900})
        page.goto(shown.gateway.url + path)
        found = Axe().run(page)
        assert found.violations_count == 0, (path, found.generate_report())
        assert page.evaluate(LOW_CONTRAST) == [], path
        assert page.locator("h1").count() == 1, path
        page.set_viewport_size({"width": NARROW, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, path


def test_no_page_asks_for_what_its_policy_forbids(shown: Shown, page: Page) -> None:
    for path in shown.pages:
        page.goto(shown.gateway.url + path)
        assert [each for each in page.problems if "404" not in each] == [], path

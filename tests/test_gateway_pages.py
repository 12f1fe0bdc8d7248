"""The pages in a real browser: list, job with live log, curves and timeline, cancel, log-in."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright")

import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright

from gateway_harness import Gateway, tagged

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("pages") / "store").start()
    yield made
    made.stop()


@pytest.fixture
def browser() -> Iterator[Browser]:
    before = dict(os.environ)
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def page(browser: Browser) -> Page:
    made = browser.new_page()
    made.problems = []
    made.on("pageerror", lambda error: made.problems.append(str(error)))
    made.on("console", lambda message: made.problems.append(message.text) if message.type == "error" else None)
    return made


def test_from_the_list_to_a_job_that_runs_to_its_cancel(gateway: Gateway, page: Page) -> None:
    gateway.submit("watched", args=["--seconds", "60"])
    folder = gateway.wait_ranks("watched")
    page.goto(f"{gateway.url}/")
    expect(page.get_by_role("row", name="watched")).to_contain_text("▶ RUNNING")
    page.get_by_role("link", name="watched").click()
    expect(page.locator("#log")).to_contain_text("hello from rank 0")
    expect(page.locator(".timeline")).to_contain_text("STARTING")
    expect(page.locator("figure")).to_contain_text("epoch_1_loss")
    page.get_by_role("link", name="train: rank 1").click()
    expect(page.locator("#log")).to_contain_text("hello from rank 1")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#live .status")).to_contain_text("CANCELLED", timeout=20_000)
    expect(page.locator("#live")).to_contain_text("cancelled by local")
    assert tagged(folder.name) == []
    assert page.problems == []


def test_a_log_grows_while_one_looks(gateway: Gateway, page: Page) -> None:
    gateway.submit("grows", args=["--seconds", "3", "--fail-rank", "0"])
    gateway.wait_ranks("grows")
    page.goto(f"{gateway.url}/jobs/grows")
    expect(page.locator("#log")).to_contain_text("ValueError: planted on rank 0", timeout=20_000)
    expect(page.locator("#live .status")).to_contain_text("✗ FAILED", timeout=20_000)
    expect(page.locator("#log[data-ended=yes]")).to_be_attached(timeout=20_000)
    assert page.problems == []


def test_what_a_job_writes_is_no_markup(gateway: Gateway, page: Page) -> None:
    evil = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
    gateway.submit("evil", args=["--echo", evil])
    gateway.wait("evil")
    page.goto(f"{gateway.url}/jobs/evil")
    expect(page.locator("#log")).to_contain_text("<script>")
    expect(page.locator("dl")).to_contain_text("<script>")
    assert page.title() == "evil · ddparity"
    assert page.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(gateway: Gateway, browser: Browser, scheme: str) -> None:
    gateway.post(f"in-{scheme}", entry="light.py")
    gateway.wait(f"in-{scheme}")
    page = browser.new_page(color_scheme=scheme)
    for path in ("/", f"/jobs/in-{scheme}"):
        page.goto(gateway.url + path)
        assert page.evaluate(LOW_CONTRAST) == []
        assert page.evaluate("[...document.querySelectorAll('input,select')].filter(e => !e.labels.length).length") == 0
        assert page.locator("h1").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(gateway: Gateway, browser: Browser, tmp_path: Path, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    from ddparity.report import render_html
    from test_report import FULL, PICTURES

    gateway.post(f"axe-{scheme}", entry="light.py")
    gateway.wait(f"axe-{scheme}")
    report = tmp_path / "report.html"
    report.write_text(render_html(FULL, PICTURES))
    page = browser.new_context(color_scheme=scheme, bypass_csp=True).new_page()
    ours = ("/", f"/jobs/axe-{scheme}", "/login", "/jobs/missing")
    for address in [*(gateway.url + path for path in ours), report.as_uri()]:
        page.goto(address)
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


LOW_CONTRAST = """() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const linear = v => v / 255 <= .03928 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const ratio = (a, b) => (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  const written = e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  return [...document.querySelectorAll('main *')]
    .filter(e => written(e) && !(e instanceof SVGElement) && e.checkVisibility())
    .filter(e => ratio(light(parse(getComputedStyle(e).color)), light(behind(e))) < 4.5)
    .map(e => e.outerHTML.slice(0, 80));
}"""


def test_log_in_with_a_token(tmp_path: Path, page: Page) -> None:
    from ddparity.gateway._database import Database, sqlite_url
    from ddparity.gateway._tokens import Tokens

    store = tmp_path / "store"
    store.mkdir()
    database = Database(sqlite_url(store / "gateway.sqlite"))
    database.migrate()
    token = Tokens(database).create("ann", ["submit"])
    database.close()
    gateway = Gateway(store, "--require-tokens", "--paused").start()
    try:
        page.goto(f"{gateway.url}/jobs/x")
        assert page.url.endswith("/login")
        page.get_by_label("Token").fill("ddp_wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("does not hold")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("header")).to_contain_text("ann")
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        page.get_by_role("button", name="Log out").click()
        assert page.url.endswith("/login")
    finally:
        gateway.stop()


def test_pages_have_twins_and_errors_are_pages_for_browsers_only(gateway: Gateway) -> None:
    browser, program = {"Accept": "text/html"}, {"Accept": "*/*"}
    with httpx.Client(base_url=gateway.url, trust_env=False) as http:
        missing = http.get("/jobs/nobody", headers=browser)
        assert (missing.status_code, "There is no job" in missing.text) == (404, True)
        assert missing.headers["content-type"].startswith("text/html")
        assert http.get("/jobs/nobody", headers=program).json()["code"] == 404
        assert http.post("/jobs/x/cancel", headers={"Origin": "https://evil.example"}).status_code == 403
        assert http.get("/static/../_settings.py").status_code == 404
        for name in ("style.css", "live.js", "icon.svg"):
            assert http.get(f"/static/{name}").status_code == 200

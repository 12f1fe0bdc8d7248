"""The pictures in a real browser: no violation of accessibility, light and dark, wide and narrow."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Browser, sync_playwright

from ddparity.judge import MemoryMark
from ddparity.report import render_fragment, render_html
from test_figures import large
from test_gateway_pages import CHROMIUM, FLAGS
from test_report import FULL, MAP

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    before = dict(os.environ)
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield made
        made.close()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return a report with every picture, and a page that holds a verdict as a notebook does."""
    pictures = msgspec.structs.replace(large(4, 12), errors=MAP)
    assert pictures.memory is not None
    pictures.memory.first = MemoryMark(step=3, ranks=[1], name="memory:held", code="memory.growth")
    folder = tmp_path_factory.mktemp("figures")
    (folder / "report.html").write_text(render_html(FULL, pictures))
    box = render_fragment(FULL, pictures).replace("<details", "<details open")
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>A notebook</title>'
    (folder / "notebook.html").write_text(f"{head}<main><h1>Cells</h1>{box}</main>")
    return sorted(folder.iterdir())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_pictures(browser: Browser, pages: list[Path], scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = browser.new_context(color_scheme=scheme, bypass_csp=True).new_page()
    for path in pages:
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.locator("svg[role=img]").count() >= 5


@pytest.mark.parametrize("width", [360, 1200])
def test_a_page_is_as_wide_as_its_window_and_wide_pictures_scroll_by_keyboard(
    browser: Browser, pages: list[Path], width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    for path in pages:
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        focusable = page.evaluate(
            """[...document.querySelectorAll('*')].filter(e => e.scrollWidth > e.clientWidth + 1
                && getComputedStyle(e).overflowX === 'auto').every(e => e.tabIndex === 0)"""
        )
        assert focusable
    page.close()


def test_words_in_a_picture_stand_within_it(browser: Browser, pages: list[Path]) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.goto(pages[1].as_uri())
    outside = page.evaluate(
        """[...document.querySelectorAll('svg')].flatMap(svg => {
            const frame = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text')].filter(text => {
                const box = text.getBoundingClientRect();
                return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 2
                    || box.bottom > frame.bottom + 2;
            }).map(text => text.textContent);
        })"""
    )
    assert outside == []
    page.close()

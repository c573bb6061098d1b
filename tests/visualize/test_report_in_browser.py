"""The page in a real browser: it renders, sorts, filters, prints, works without scripts, and stays off the network."""

from __future__ import annotations

import pytest

from candor_monai.visualize.report import write_report

from . import synthetic
from .browser import Browser, needs_chromium

pytestmark = needs_chromium
TABLE = "document.querySelector('#rows-1')"
SHOWN = f"Array.from({TABLE}.tBodies).filter(b => !b.hidden)"


@pytest.fixture(scope="module")
def browser():
    with Browser() as one:
        yield one


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    document = synthetic.three_encoders()
    frames = synthetic.frames(document)
    write_report(
        path, document, frames["queries"], frames["candidates"], frames["rejected"], synthetic.thumbnail,
        features=synthetic.features,
    )  # fmt: skip
    return path


def column(browser, number):
    return browser.run(f"{SHOWN}.map(b => b.rows[0].cells[{number}].textContent.trim())")


def test_it_loads_quietly_and_alone(browser, page):
    browser.open(page)
    assert browser.run("document.documentElement.dataset.ready") == "true"
    assert browser.console == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.as_uri()]
    assert browser.run("document.title").startswith("Which encoder separates the findings?")


def test_nothing_sticks_out(browser, page):
    for width in (1280, 800, 400):
        browser.open(page, width=width)
        assert browser.run("document.documentElement.scrollWidth") <= width


def test_pictures_are_drawn(browser, page):
    browser.open(page)
    browser.run("document.querySelector('#gallery details').open = true")
    box = browser.run(
        "(r => [r.width, r.height])(document.querySelector('#gallery .q svg.th use').getBoundingClientRect())"
    )
    assert min(box) > 90


def test_sorting_by_number_and_back(browser, page):
    browser.open(page)
    before = column(browser, 3)
    click = f"{TABLE}.tHead.rows[0].cells[3].querySelector('button').click()"
    browser.run(click)
    up = column(browser, 3)
    assert up == sorted(before, key=float) != before
    assert browser.run(f"{TABLE}.tHead.rows[0].cells[3].getAttribute('aria-sort')") == "ascending"
    browser.run(click)
    assert column(browser, 3) == up[::-1] or [float(v) for v in column(browser, 3)] == sorted(map(float, up))[::-1]
    assert browser.run(f"{TABLE}.tHead.rows[0].cells[3].getAttribute('aria-sort')") == "descending"
    # the rows of the groups went along
    assert browser.run(f"Array.from({TABLE}.tBodies).every(b => b.rows.length === 2)")


def test_sorting_puts_what_is_missing_last(browser, tmp_path):
    document = synthetic.one_encoder()
    frames = synthetic.frames(document)
    path = tmp_path / "report.html"
    write_report(path, document, frames["queries"], frames["candidates"], frames["rejected"], lambda i: None, False)
    browser.open(path)
    for _ in range(2):
        browser.run(f"{TABLE}.tHead.rows[0].cells[2].querySelector('button').click()")
        assert column(browser, 2)[-1] == "–"


def test_sorting_by_text_and_thousands(browser, page):
    browser.open(page)
    browser.run(f"{TABLE}.tHead.rows[0].cells[0].querySelector('button').click()")
    assert column(browser, 0) == sorted(column(browser, 0))
    browser.run(f"{TABLE}.tHead.rows[0].cells[9].querySelector('button').click()")
    numbers = [int(text.replace(",", "")) for text in column(browser, 9)]
    assert numbers == sorted(numbers)


def test_filters(browser, page):
    browser.open(page)
    assert browser.run("document.querySelector('.filters').hidden") is False
    choose = (
        "(s => {{ s.value = {value!r}; s.dispatchEvent(new Event('change')); }})"
        "(document.querySelectorAll('.filters select')[{n}])"
    )
    browser.run(choose.format(value="Edema", n=0))
    assert set(column(browser, 0)) == {"Edema"}
    assert browser.run("document.querySelector('.filters output').textContent") == "3 of 12 rows"
    browser.run(choose.format(value="tied", n=2))
    assert column(browser, 1) == ["Random ViT-L"]
    browser.run(choose.format(value="", n=0))
    browser.run(choose.format(value="", n=2))
    browser.run(
        "(i => { i.value = 'dino pneu'; i.dispatchEvent(new Event('input')); })"
        "(document.querySelector('.filters input'))"
    )
    assert column(browser, 1) == ["RAD-DINO", "DINOv3-S"]
    assert set(column(browser, 0)) == {"Pneumonia"}


def test_the_keyboard_reaches_and_works_it(browser, page):
    browser.open(page)
    browser.key("Tab", 9)
    assert browser.run("document.activeElement.className") == "skip"
    browser.run("document.querySelector('#rows-1 thead button').focus()")
    browser.key("Enter", 13)
    assert browser.run("document.querySelector('#rows-1 th').getAttribute('aria-sort')") == "ascending"
    reached = browser.run(
        "Array.from(document.querySelectorAll('button, summary, input, select, a[href], .scroll[tabindex]'))"
        ".filter(e => e.offsetParent && e.tabIndex < 0).length"
    )
    assert reached == 0


def test_it_reads_without_scripts(browser, page):
    browser.open(page, scripts=False)
    tree = browser.call("DOM.getDocument", depth=-1)["root"]["nodeId"]
    filters = browser.call("DOM.querySelectorAll", nodeId=tree, selector=".filters:not([hidden]), th button")["nodeIds"]
    assert filters == []
    rows = browser.call("DOM.querySelectorAll", nodeId=tree, selector="#rows-1 tbody.r")["nodeIds"]
    assert len(rows) == 12
    assert browser.console == []


def test_contrast_of_text(browser, page):
    """Every text against its background: at least 4.5 to 1 (WCAG AA)."""
    browser.open(page)
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    poor = browser.run(CONTRAST)
    assert poor == []


def test_it_prints(browser, page, tmp_path):
    browser.open(page)
    browser.pdf(tmp_path / "report.pdf")
    pdf = (tmp_path / "report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert 4 <= pdf.count(b"/Type /Page\n") <= 30


def test_hostile_text_does_nothing(browser, tmp_path):
    document = synthetic.three_encoders()
    frames = synthetic.frames(document)
    nasty = {n: f.map(lambda v: v + synthetic.SCRIPT if isinstance(v, str) else v) for n, f in frames.items()}
    path = tmp_path / "report.html"
    write_report(
        path, synthetic.hostile(document), nasty["queries"], nasty["candidates"], nasty["rejected"], synthetic.thumbnail
    )
    browser.open(path)
    assert browser.dialogs == []
    assert browser.console == []
    assert browser.run("document.scripts.length") == 1


# Colour pairs of visible text below 4.5 : 1 (3 : 1 for large text), with the text.
CONTRAST = """
(() => {
  const parse = c => {
    const m = c.match(/[\\d.]+/g).map(Number);
    return m.length < 4 ? [...m.slice(0, 3), 1] : m;
  };
  const linear = v => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = c => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3] > 0.99) return c;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), e = walker.currentNode.parentElement;
    if (!text || e.closest('svg, script, style, .skip') || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), a = light(parse(style.color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push([text.slice(0, 30), ratio.toFixed(2)]);
  }
  return found;
})()
"""

"""The page in a browser: drawn, sorted, small, dark, and without a word to the network."""

from __future__ import annotations

import base64
import csv
import json
import os
import random as randomness
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from orderdp.report.page import write_report
from tests.browser.digits import write_records
from tests.runs import full, run, write

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
WAIT = 60
PICTURES = Path(os.environ.get("PICTURES", "build/pictures"))
PHONE, DESK = (390, 844), (1440, 900)

Browser = webdriver.Chrome


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_records(tmp_path_factory.mktemp("digits")))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver_path is None:  # Selenium would go and fetch them from somewhere
        pytest.fail("chromium and chromedriver must be installed; `make test-browser` sees to it")
    options = Options()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    driver.set_page_load_timeout(WAIT)
    driver.set_script_timeout(WAIT)
    try:
        yield driver
    finally:
        driver.quit()


def visit(browser: Browser, page: Path, size: tuple[int, int] = DESK, theme: str = "light") -> None:
    """Opens the page at a size and in a theme, and waits for all its charts."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [_feature(theme)]})
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    wait_for_charts(browser, theme)


def _feature(theme: str) -> dict[str, str]:
    return {"name": "prefers-color-scheme", "value": theme}


def wait_for_charts(browser: Browser, theme: str) -> None:
    script = "return [...document.querySelectorAll('.chart')].every(c => c.dataset.drawn === arguments[0])"
    WebDriverWait(browser, WAIT).until(lambda driver: driver.execute_script(script, theme))


def picture(browser: Browser, name: str) -> None:
    """The whole page as an image, to be looked at."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    found = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    (PICTURES / f"{name}.png").write_bytes(base64.b64decode(found["data"]))


def first_cells(browser: Browser) -> list[str]:
    return [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "tbody td:first-child .value")]


def orders(browser: Browser, column: int) -> list[float]:
    cells = browser.find_elements(By.CSS_SELECTOR, f"tbody td:nth-child({column})")
    return [float(order) for order in (cell.get_attribute("data-order") for cell in cells) if order]


def requests(browser: Browser) -> list[str]:
    """Where the pages of these tests went, by the browser's account.

    Its own start page does not count, nor what is in the page itself: pictures, and files that it makes.
    """
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [message for message in messages if message["method"] == "Network.requestWillBeSent"]
    found = [each["params"]["request"]["url"] for each in sent if each["params"]["documentURL"].startswith("file:")]
    return [url for url in found if not url.startswith(("data:", "blob:"))]


def test_all_charts_are_drawn_without_errors_or_requests(browser: Browser, page: Path) -> None:
    visit(browser, page)
    drawn = browser.find_elements(By.CSS_SELECTOR, ".chart svg.marks")
    assert len(drawn) == 7  # differences, accuracy, time, learning, cost, usage, and the one diagnostic
    for chart in drawn:
        assert chart.find_elements(By.CSS_SELECTOR, "path[aria-roledescription], path")
        assert chart.size["width"] > 500
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert requests(browser) == [page.as_uri()]
    picture(browser, "desk")


def test_a_request_would_be_noticed(browser: Browser, tmp_path: Path) -> None:
    """The negative control of the test above, which would pass if nothing were logged at all."""
    other = tmp_path / "other.html"
    other.write_text("<script src='http://127.0.0.1:9/x.js'></script><script>console.error('seen')</script>")
    browser.get(other.as_uri())
    assert "http://127.0.0.1:9/x.js" in requests(browser)
    assert any("seen" in entry["message"] for entry in browser.get_log("browser"))


def test_a_click_on_a_heading_sorts_and_another_turns_it_round(browser: Browser, page: Path) -> None:
    visit(browser, page)
    before = first_cells(browser)
    heading = browser.find_element(By.CSS_SELECTOR, "th:nth-child(2)")
    button = heading.find_element(By.TAG_NAME, "button")
    button.click()
    assert heading.get_attribute("aria-sort") == "descending"
    falling = orders(browser, 2)
    assert falling == sorted(falling, reverse=True)
    button.click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert orders(browser, 2) == sorted(falling)
    assert sorted(first_cells(browser)) == sorted(before)


def test_a_key_sorts_as_a_click_does_and_what_is_missing_stays_last(browser: Browser, page: Path) -> None:
    visit(browser, page)
    button = browser.find_element(By.CSS_SELECTOR, "th:nth-child(5) button")
    for _ in range(2):
        button.send_keys(Keys.ENTER)
        assert first_cells(browser)[-1] == "Full data"
        assert orders(browser, 5) in (sorted(orders(browser, 5)), sorted(orders(browser, 5), reverse=True))
    states = [heading.get_attribute("aria-sort") for heading in browser.find_elements(By.TAG_NAME, "th")]
    assert states.count("none") == len(states) - 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_all_of_it_without_scrolling_sideways(browser: Browser, page: Path, theme: str) -> None:
    visit(browser, page, PHONE, theme)
    picture(browser, f"phone-{theme}")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= PHONE[0]
    assert browser.execute_script(OUTSIDE) == []
    widths = {chart.size["width"] for chart in browser.find_elements(By.CSS_SELECTOR, ".chart svg.marks")}
    assert all(300 < width <= PHONE[0] for width in widths)


def test_the_buttons_write_the_table_as_csv_and_json(browser: Browser, page: Path, tmp_path: Path) -> None:
    place = tmp_path / "downloads"
    place.mkdir()
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(place)})
    visit(browser, page)
    names = first_cells(browser)
    for kind in ("csv", "json"):
        browser.find_element(By.CSS_SELECTOR, f".downloads button[data-kind={kind}]").click()
        WebDriverWait(browser, WAIT).until(lambda _, kind=kind: list(place.glob(f"*.{kind}")))
    with open(place / "digits-mlp-64.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    rows = json.loads((place / "digits-mlp-64.json").read_text())
    assert [line["method"] for line in lines] == [row["method"] for row in rows] == names
    assert [float(line["metric"]) for line in lines] == [row["metric"] for row in rows]
    assert [line["to_full_low"] for line in lines] == [
        "" if row["to_full_low"] is None else str(row["to_full_low"]) for row in rows
    ]
    assert requests(browser) == [page.as_uri()]  # nothing left the page


def test_pictures_of_samples_are_shown(browser: Browser, page: Path) -> None:
    visit(browser, page)
    pictures = browser.find_elements(By.CSS_SELECTOR, ".gallery img")
    assert 8 <= len(pictures) <= 24
    sizes = {browser.execute_script("return arguments[0].naturalWidth", each) for each in pictures}
    assert sizes == {8}  # they were decoded
    assert "#" in browser.find_element(By.CSS_SELECTOR, ".gallery li").text


@pytest.mark.parametrize("count", [2, 5, 40])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_of_any_length_fit_the_screen(
    browser: Browser, tmp_path: Path, count: int, size: tuple[int, int], theme: str
) -> None:
    page = write_report(write(tmp_path / "many", many(count), epochs=6))
    visit(browser, page, size, theme)
    picture(browser, f"rows-{count}-{'phone' if size == PHONE else 'desk'}-{theme}")
    assert len(first_cells(browser)) == count
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    assert browser.execute_script(OUTSIDE) == []
    assert browser.execute_script(SMALL) == []
    assert browser.execute_script(CUT) == []
    names = browser.execute_script(NAMES)
    assert len(set(names)) == len(names) == count - 1
    assert all(name.endswith("%") for name in names)
    assert browser.execute_script(ALONE) == []
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


# What the forest plot calls its rows, as it is drawn.
NAMES = """return [...document.querySelector('.chart svg.marks').querySelectorAll('.role-axis-label text')]
    .map((each) => each.textContent).filter((text) => /[a-z]/.test(text))"""
# Marks of methods that stand on a line of their own, above the name.
ALONE = """return [...document.querySelectorAll('td .swatch')].filter((mark) => {
    const name = mark.nextElementSibling.getClientRects()[0], own = mark.getBoundingClientRect();
    return own.bottom < name.top || own.top > name.bottom; }).map((mark) => mark.parentElement.textContent.trim())"""
OUTSIDE = """return [...document.querySelectorAll('body *')]
    .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
    .map((each) => each.outerHTML.slice(0, 200))"""
SMALL = """return [...document.querySelectorAll('main *')].filter((each) => each.childNodes.length
    && [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
    && parseFloat(getComputedStyle(each).fontSize) < 11).map((each) => each.outerHTML.slice(0, 200))"""
# Labels of the axes that stand outside the drawing they belong to, of which a reader would see a part.
CUT = """return [...document.querySelectorAll('.chart svg.marks')].flatMap((chart) => {
    const box = chart.getBoundingClientRect();
    return [...chart.querySelectorAll('text')]
        .filter((each) => each.textContent.trim() && each.getAttribute('opacity') !== '0')
        .filter((each) => { const own = each.getBoundingClientRect();
            return own.width && (own.left < box.left - 2 || own.right > box.right + 2); })
        .map((each) => each.textContent); })"""


def many(count: int) -> list[Any]:
    """Records of a comparison with so many rows, of which some have long names."""
    rng = randomness.Random(count)
    policies = ("orderdp", "infobatch", "ucb", "epsilon-greedy", "dynamic-uncertainty", "self-paced", "learned", "el2n")
    settings = [("full", None, "Full data")]
    settings += [
        (policy, ratio, f"{policy}:exploration={place} {100 * ratio:g}%" if place else f"{policy} {100 * ratio:g}%")
        for place in range(2)
        for ratio in (0.3, 0.5, 0.7)
        for policy in (*policies, *(("random", "reduced") if not place else ()))
    ]
    return [
        made(
            90 + rng.gauss(0, 0.15) - 4 * (ratio or 0) ** 3 - rng.random() * (ratio or 0),
            seed,
            policy=policy,
            label=label,
            prune_ratio=ratio,
            saved=ratio or 0.0,
            seconds=600 * (1.05 - (ratio or 0)),
        )
        for policy, ratio, label in settings[:count]
        for seed in range(3)
    ]


def made(metric: float, seed: int, **options: Any) -> Any:
    each = run(metric, seed, **options)
    each.id = f"{each.id}".replace(":", "-").replace(" ", "-")
    each.summary = {**(each.summary or {}), "evaluation_seconds": 20.0}
    return each


def test_night_falls_while_the_page_is_open(browser: Browser, page: Path) -> None:
    visit(browser, page)
    day = _colors(browser)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [_feature("dark")]})
    wait_for_charts(browser, "dark")
    night = _colors(browser)
    assert _brightness(day["paper"]) > 200 > 60 > _brightness(night["paper"])
    assert _brightness(day["ink"]) < 60 < 200 < _brightness(night["ink"])
    assert day["axis"] != night["axis"]
    assert len(browser.find_elements(By.CSS_SELECTOR, ".chart svg.marks")) == 7
    picture(browser, "desk-dark")


def _colors(browser: Browser) -> dict[str, Any]:
    script = """const style = getComputedStyle(document.body), text = document.querySelector('.chart svg.marks text');
    return {paper: style.backgroundColor, ink: style.color, axis: text.getAttribute('fill')}"""
    return dict(browser.execute_script(script))


def _brightness(color: str) -> float:
    return sum(int(part) for part in color.removeprefix("rgb(").rstrip(")").split(",")) / 3


def test_a_click_on_a_legend_leaves_one_method_and_another_brings_all_back(browser: Browser, page: Path) -> None:
    visit(browser, page)
    clicked = 0
    for chart in browser.find_elements(By.CSS_SELECTOR, ".chart"):
        names = chart.find_elements(By.CSS_SELECTOR, ".role-legend-label text")
        if not names or names[0].text == "training":  # a forest plot has none, and where the time goes has no methods
            continue
        assert not dimmed(chart)
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", names[0])
        ActionChains(browser).move_to_element(names[0]).click().perform()
        WebDriverWait(browser, WAIT).until(lambda _, chart=chart: dimmed(chart))
        ActionChains(browser).move_to_element(names[0]).click().perform()
        WebDriverWait(browser, WAIT).until(lambda _, chart=chart: not dimmed(chart))
        clicked += 1
    assert clicked == 5  # accuracy, time, learning, usage, and the one diagnostic


def dimmed(chart: Any) -> bool:
    marks = chart.find_elements(By.CSS_SELECTOR, ".role-mark path, .role-mark line")
    return any(mark.get_attribute("opacity") == "0.12" for mark in marks)


def test_pointing_at_a_point_says_what_it_is(browser: Browser, page: Path) -> None:
    visit(browser, page)
    script = """
    const point = document.querySelector('.chart svg.marks .mark-symbol.role-mark path');
    point.scrollIntoView({block: 'center'});
    const box = point.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2]"""
    x, y = browser.execute_script(script)
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
    tip = "return document.querySelector('#vg-tooltip-element.visible')?.innerText"
    text = WebDriverWait(browser, WAIT).until(lambda driver: driver.execute_script(tip))
    assert "difference" in text
    assert "95 % interval" in text


def test_names_from_the_data_are_shown_and_never_run(browser: Browser, tmp_path: Path) -> None:
    evil = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    runs = [full(90.0, seed, label=evil) for seed in (0, 1)]
    runs += [run(89.0, seed, label=f"<b>{evil}", data=f"digits{evil}") for seed in (0, 1)]
    for number, each in enumerate(runs):
        each.id = str(number)
    page = write_report(write(tmp_path / "evil", runs, diagnostics={evil: 1.0}))
    visit(browser, page)
    assert browser.execute_script("return window.hacked") is None
    assert evil in first_cells(browser)
    assert browser.find_elements(By.CSS_SELECTOR, "img, main b, main script") == []
    assert requests(browser) == [page.as_uri()]

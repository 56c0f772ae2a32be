"""The page in a real browser: no errors, no requests, and everything on it works by mouse and by keyboard.

Needs Debian's ``chromium`` and ``chromium-driver``. Where they are not there the tests are skipped, unless
MOEPROBE_REQUIRE_BROWSER=1 says that they must run.
"""

import base64
import json
import re
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from moeprobe import api
from tests.browser import needs_browser
from tests.commands import PATIENCE
from tests.studies.report.making import (
    EVAL,
    HOSTILE,
    MATCH,
    NAN,
    hostile,
    row,
    write_classes,
    write_frames,
    write_overlay,
    write_rows,
    write_run,
    write_text_overlay,
)

pytestmark = [needs_browser, pytest.mark.slow, pytest.mark.promise]
PHONE, DESK = 390, 1280


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of everything: values with a gap, frames, and a run in which every name is a script."""
    folder = tmp_path_factory.mktemp("report")
    key = ("", "", "accuracy", "")
    gap = [
        row(name, key, value, flag=flag)
        for name, value, flag in (
            ("nine", (9.0, 8.0, 9.5), ""),
            ("none", (NAN, NAN, NAN), "no_trials"),
            ("minus", (-1.5, -2.0, -1.0), ""),
            ("lowest", (-20.0, -21.0, -19.0), ""),
            ("ten", (10.0, 9.0, 11.0), ""),
        )
    ]
    runs = [
        write_run(folder / "match"),
        write_run(folder / "eval", "eval", values=EVAL),
        write_run(folder / "worse", values={key: given[::-1] for key, given in MATCH.items()}),
        write_frames(folder / "overlay"),
        write_rows(folder / "gap", "gap", gap, checkpoints=[line["checkpoint"] for line in gap]),
        hostile(folder / "hostile"),
    ]
    return api.report(runs, out=folder / "out").files[0]


def show(browser: Any, page: Path, *, width: int = DESK, scheme: str = "light", media: str = "") -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE},
    )
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what earlier pages left
    browser.get(page.as_uri())


def find(browser: Any, selector: str) -> list[Any]:
    return browser.find_elements("css selector", selector)


def requested(browser: Any) -> list[str]:
    """Every address that was asked for since the page was opened."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]


def test_it_opens_without_errors_and_without_requests(browser: Any, page: Path) -> None:
    show(browser, page)
    assert browser.get_log("browser") == []
    addresses = requested(browser)
    assert addresses[0] == page.as_uri()
    assert all(address.startswith("data:") for address in addresses[1:])
    assert len(addresses) >= 5
    for picture in find(browser, "img"):
        assert picture.get_property("naturalWidth") > 0


def test_a_name_that_is_a_script_is_shown_and_not_run(browser: Any, page: Path) -> None:
    from selenium.common.exceptions import NoAlertPresentException

    show(browser, page)
    with pytest.raises(NoAlertPresentException):
        _ = browser.switch_to.alert.text
    assert HOSTILE in browser.find_element("tag name", "body").text
    assert len(find(browser, "script")) == 1


def test_even_a_script_that_got_in_would_not_run(browser: Any, page: Path, tmp_path: Path) -> None:
    """The policy is the second lock: the same page with a script put in by hand."""
    broken = tmp_path / "broken.html"
    broken.write_text(
        page.read_text().replace("</main>", "<script>document.title = 'run'</script></main>"),
        encoding="utf-8",
    )
    show(browser, broken)
    assert browser.title == "Routing report"
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


def test_the_slider_moves_through_the_frames(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    show(browser, page)
    [slider] = find(browser, ".frames input[type=range]")
    [output] = find(browser, ".frames output")
    frames = find(browser, ".frames figure")
    assert len(frames) == 3

    def seen() -> tuple[str, str, list[bool]]:
        return output.text, slider.get_attribute("aria-valuetext"), [frame.is_displayed() for frame in frames]

    assert seen() == ("0", "severity 0", [True, False, False])
    slider.send_keys(Keys.ARROW_RIGHT)
    assert seen() == ("0.1", "severity 0.1", [False, True, False])
    slider.send_keys(Keys.END)
    assert seen() == ("0.2", "severity 0.2", [False, False, True])
    slider.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert seen() == ("0", "severity 0", [True, False, False])
    labels = find(browser, f"label[for={slider.get_attribute('id')}]")
    assert [label.text for label in labels] == ["severity"]
    assert browser.get_log("browser") == []


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorer")
    return api.report(
        [write_overlay(folder / "overlay"), write_classes(folder / "routes"), write_run(folder / "match")],
        out=folder / "out",
    ).files[0]


def tiles(browser: Any) -> list[Any]:
    return find(browser, ".explorer .grid")


def test_one_slider_moves_all_layers_and_models(browser: Any, overlay: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    show(browser, overlay)
    (slider,) = find(browser, ".explorer input[type=range]")
    assert len(tiles(browser)) == 8, "two layers, images and checkpoints"
    captions = [caption.text for caption in find(browser, ".explorer .caption")]
    assert captions == ["image", "a: 0 of 4 changed", "b: 1 of 4 changed"] * 4
    assert len(find(browser, ".explorer .changed")) == 4

    def gray() -> set[int]:
        read = "(one) => one.getContext('2d').getImageData(4, 4, 1, 1).data[0]"
        return set(browser.execute_script(f"return [...document.querySelectorAll('canvas')].map({read})"))

    assert gray() == {160}
    slider.send_keys(Keys.HOME)
    assert find(browser, ".explorer output")[0].text == "0.0"
    assert not find(browser, ".explorer .changed") and gray() == {80}
    slider.send_keys(Keys.ARROW_RIGHT)
    assert len(find(browser, ".explorer .changed")) == 4 and gray() == {160}
    # What is drawn by the script replaces the figure, except on paper.
    assert not find(browser, ".still img")[0].is_displayed()
    assert not [entry for entry in browser.get_log("browser") if "Canvas2D" not in entry["message"]]
    show(browser, overlay, media="print", width=720)
    assert find(browser, ".still img")[0].is_displayed() and not find(browser, ".explorer")[0].is_displayed()


def test_a_patch_tells_its_experts_by_mouse_and_by_keyboard(browser: Any, overlay: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    show(browser, overlay)
    (message,) = find(browser, ".explorer .patch")
    tile = next(one for one in tiles(browser) if one.get_attribute("aria-label") == "b, blocks.1, digits/8")
    patches = tile.find_elements("tag name", "button")
    ActionChains(browser).move_to_element(patches[3]).perform()
    assert message.text == (
        "b, blocks.1, digits/8, row 2, column 2, noise σ 0.2: experts 2 (gate 0.500), 0 (gate 0.250), margin 0.125. "
        "In the clean image: experts 1 (gate 0.625), 3 (gate 0.125), margin 0.25. Changed from 1 to 2."
    )
    # The slider speaks of the patch that was pointed at last.
    find(browser, ".explorer input")[0].send_keys(Keys.HOME)
    assert "noise σ 0.0: experts 1 (gate 0.500)" in message.text and "Changed" not in message.text
    browser.execute_script("arguments[0].focus()", patches[0])
    assert "row 1, column 1" in message.text
    # One stop of Tab in a tile: the next one is in the next tile.
    patches[0].send_keys(Keys.TAB)
    assert "b, blocks.1, digits/8" not in message.text and "row 1, column 1" in message.text
    browser.execute_script("arguments[0].focus()", patches[0])
    for key, place in (
        (Keys.ARROW_RIGHT, "row 1, column 2"),
        (Keys.ARROW_DOWN, "row 2, column 2"),
        (Keys.ARROW_LEFT, "row 2, column 1"),
    ):
        browser.switch_to.active_element.send_keys(key)
        assert place in message.text
    assert browser.get_log("browser") == []


def test_another_first_expert_of_a_set_is_told_from_another_set(browser: Any, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains

    folder = write_overlay(tmp_path / "overlay", layers=["blocks.1"], images=["digits/7"])
    table = pd.read_csv(folder / "patches.csv", dtype=str)
    # The first patch of a has another set with the same first expert; the last of b the same set in another order.
    table["changed_set"] = "False"
    at_strongest = table["severity"] == "0.2"
    table.loc[at_strongest & (table["checkpoint"] == "a") & (table["clean_patch"] == "0"), "changed_set"] = (
        "True"
    )
    table.to_csv(folder / "patches.csv", index=False)
    show(browser, api.report([folder], out=tmp_path / "out").files[0])
    captions = [caption.text for caption in find(browser, ".explorer .caption")]
    assert captions == [
        "image",
        "a: 1 of 4 changed set, 0 only its first expert",
        "b: 0 of 4 changed set, 1 only its first expert",
    ]
    [outlined], [dashed] = find(browser, ".grid .changed"), find(browser, ".grid .reordered")
    assert dashed.value_of_css_property("outline-style") == "dashed"
    (message,) = find(browser, ".explorer .patch")
    for patch, said in (
        (outlined, "Set changed, its first expert is the same."),
        (dashed, "First expert changed from 1 to 2; the set is the same."),
    ):
        ActionChains(browser).move_to_element(patch).perform()
        assert message.text.endswith(said)


def test_an_expert_shows_its_patches(browser: Any, overlay: Path) -> None:
    show(browser, overlay)
    (button,) = [one for one in find(browser, ".experts button") if one.text == "2"]
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert len(find(browser, ".grid button")) - len(find(browser, ".grid .other")) == 4
    captions = [caption.text for caption in find(browser, ".explorer .caption")]
    assert captions == ["image", "a: expert 2 has 0 of 4", "b: expert 2 has 1 of 4"] * 4
    (shares,) = find(browser, ".explorer .shares li")
    assert shares.text == (
        "b, blocks.3: share of the patches of a class: 0.500 [0.490, 0.510] of cat, 0.375 [0.365, 0.385] of "
        f"{HOSTILE}, 0.125 [0.115, 0.135] of dog, 0.250 [0.240, 0.260] of all."
    )
    button.click()
    assert find(browser, ".explorer .shares li") == []
    assert not find(browser, ".grid .other") and button.get_attribute("aria-pressed") == "false"


def test_the_patches_fit_a_phone(browser: Any, overlay: Path) -> None:
    show(browser, overlay, width=PHONE)
    assert browser.find_element("tag name", "html").get_property("scrollWidth") <= PHONE
    assert min(one.size["width"] for one in find(browser, ".grid button")) >= 40


def test_the_tokens_of_a_text_tell_their_experts(browser: Any, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    page = api.report([write_text_overlay(tmp_path / "texts")], out=tmp_path / "out").files[0]
    show(browser, page)
    (tile,) = tiles(browser)
    read = [button.text for button in tile.find_elements("tag name", "button")]
    assert read == ["a", " sh", "op"] and find(browser, ".explorer .caption")[0].text == "a: 1 of 2 changed"
    tokens = tile.find_elements("tag name", "button")
    (message,) = find(browser, ".explorer .patch")
    ActionChains(browser).move_to_element(tokens[1]).perform()
    assert message.text == (
        "a, layers.0, lines/0, token 2 “sh”, typos: share of words 0.2: expert 3 (gate 0.500). "
        "In the clean text: expert 1 (gate 0.250). Changed from 1 to 3."
    )
    browser.execute_script("arguments[0].focus()", tokens[1])
    browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert "token 3 “op”" in message.text and "No clean token corresponds." in message.text
    # Without typos the text has other tokens.
    find(browser, ".explorer input")[0].send_keys(Keys.HOME)
    assert [button.text for button in tile.find_elements("tag name", "button")] == ["a", " shop"]
    assert not find(browser, ".explorer .changed")
    assert browser.get_log("browser") == []
    show(browser, page, width=PHONE)
    assert browser.find_element("tag name", "html").get_property("scrollWidth") <= PHONE


def column(table: Any, number: int) -> list[str]:
    return [
        line.find_elements("tag name", "td")[number].text.split("\n")[0]
        for line in table.find_elements("css selector", "tbody tr")
    ]


def test_tables_sort_by_value_and_keep_what_is_missing_last(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    show(browser, page)
    browser.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    [table] = [
        one
        for one in find(browser, "#run-5 table")
        if one.find_element("tag name", "caption").get_attribute("textContent").startswith("table.csv")
    ]
    headings = table.find_elements("css selector", "thead th")
    names = [heading.get_attribute("textContent") for heading in headings]
    place, who = names.index("value"), names.index("checkpoint")
    assert column(table, who) == ["nine", "none", "minus", "lowest", "ten"]
    button = headings[place].find_element("tag name", "button")
    button.click()
    assert column(table, who) == ["lowest", "minus", "nine", "ten", "none"]
    assert headings[place].get_attribute("aria-sort") == "ascending"
    button.send_keys(Keys.ENTER)
    assert column(table, who) == ["ten", "nine", "minus", "lowest", "none"]
    assert headings[place].get_attribute("aria-sort") == "descending"
    headings[who].find_element("tag name", "button").send_keys(Keys.SPACE)
    assert column(table, who) == ["lowest", "minus", "nine", "none", "ten"]
    assert headings[place].get_attribute("aria-sort") is None
    assert browser.get_log("browser") == []


def test_the_headline_table_sorts_by_value_not_by_its_interval(browser: Any, page: Path) -> None:
    show(browser, page)
    browser.execute_script("document.querySelector('details:has(#headlines)').open = true")
    table = browser.find_element("css selector", "table:has(#headlines)")
    headings = table.find_elements("css selector", "thead th")
    names = [heading.text.split("\n")[0] for heading in headings]
    place = names.index("b − a")
    headings[place].find_element("tag name", "button").click()
    texts = column(table, place)
    values = [float(text.split(" ")[0]) for text in texts if text]
    assert values == pytest.approx([-0.195, -0.17, -0.001, 0.001, 0.003, 0.17, 0.195])
    assert texts[len(values) :] == [""]


def test_a_csv_can_be_saved(browser: Any, page: Path) -> None:
    show(browser, page)
    find(browser, "a[download='match-table.csv']")[0].click()
    saved, until = browser.downloads / "match-table.csv", time.monotonic() + PATIENCE
    while not saved.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert saved.read_bytes() == (page.parent.parent / "match" / "table.csv").read_bytes()


@pytest.mark.parametrize("width", [PHONE, 768, DESK])
def test_the_page_never_scrolls_sideways(browser: Any, page: Path, width: int) -> None:
    show(browser, page, width=width)
    browser.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    root = browser.find_element("tag name", "html")
    assert root.get_property("scrollWidth") <= width
    if width == PHONE:
        # Wide tables scroll inside their own container, which the keyboard can reach.
        boxes = [
            box
            for box in find(browser, ".scroll")
            if box.get_property("scrollWidth") > box.get_property("clientWidth")
        ]
        assert len(boxes) > 3
        assert all(box.get_attribute("tabindex") == "0" for box in boxes)


def luminance(color: str) -> float:
    """Relative luminance of ``rgb(r, g, b)``, as WCAG 2 defines it."""
    parts = [float(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_light_and_dark(browser: Any, page: Path, scheme: str) -> None:
    show(browser, page, scheme=scheme)
    ground = luminance(browser.find_element("tag name", "body").value_of_css_property("background-color"))
    assert (ground > 0.9) == (scheme == "light")
    for selector in ("body", "a", ".command", ".note", ".between", ".asked dt", "th button"):
        color = luminance(find(browser, selector)[0].value_of_css_property("color"))
        light, dark = max(color, ground), min(color, ground)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, selector
    # Figures are drawn on white, whatever is around them.
    picture = find(browser, "figure img")[0].value_of_css_property("background-color")
    assert luminance(picture) == pytest.approx(1)


def test_on_paper_all_frames_and_no_controls(browser: Any, page: Path) -> None:
    show(browser, page, media="print", width=720)
    assert all(frame.is_displayed() for frame in find(browser, ".frames figure"))
    for selector in (".slider", ".downloads", "nav", "details.whole", "#provenance"):
        shown = find(browser, selector)
        assert shown and not any(one.is_displayed() for one in shown), selector
    assert browser.find_element("tag name", "html").get_property("scrollWidth") <= 720


def test_the_page_is_short_until_it_is_unfolded(browser: Any, page: Path) -> None:
    show(browser, page)
    count = "return [...document.querySelectorAll('tbody tr')].filter((row) => row.checkVisibility()).length"
    folded = browser.execute_script(count)
    browser.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert 2 < folded < 20 < browser.execute_script(count)
    printed = browser.execute_cdp_cmd("Page.printToPDF", {})["data"]
    pages = len(re.findall(rb"/Type\s*/Page[^s]", base64.b64decode(printed)))
    assert pages <= 3, "what is folded is not printed, even when it was unfolded"


def test_without_scripts_all_frames_are_there(browser: Any, page: Path, tmp_path: Path) -> None:
    still = tmp_path / "still.html"
    head, script = page.read_text().rsplit("<script>", 1)
    still.write_text(head + script.split("</script>", 1)[1], encoding="utf-8")
    show(browser, still)
    assert [frame.is_displayed() for frame in find(browser, ".frames figure")] == [True, True, True]
    assert not find(browser, ".slider")[0].is_displayed()
    assert not find(browser, "th button")
    assert find(browser, "a[download]")

"""The page: what its controls say, and one visit in a real browser."""

import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import gradio as gr
import pytest
from explored import (
    classifier,  # noqa: F401 (a fixture)
    linformer,  # noqa: F401 (a fixture)
    tokenizer,  # noqa: F401 (a fixture)
)

from linformer_hf.explorer.checkpoints import UNTRAINED
from linformer_hf.explorer.page import ExplorerArguments, build_page, explore, serve_page
from linformer_hf.explorer.tab_rank import MAP_TOKENS


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TABS = ("Rank", "Cost", "Slots", "Try")
WAIT = 60_000  # milliseconds until a test is given up, on however busy a machine


@pytest.fixture(scope="module")
def page():
    return build_page([UNTRAINED])


def test_every_control_says_what_it_does(page):
    kinds = gr.Slider | gr.Radio | gr.Textbox | gr.Dropdown
    controls = [block for block in page.blocks.values() if isinstance(block, kinds)]
    assert len(controls) == 16
    assert [control.label for control in controls if not control.info] == []


def test_the_page_states_the_limits_of_a_linformer(page):
    texts = " ".join(block.value for block in page.blocks.values() if isinstance(block, gr.Markdown))
    for limit in ("Bounded length", "No autoregressive use", "attention is not of low rank", "short texts"):
        assert limit in texts


def test_the_page_reports_to_nobody_and_offers_no_public_calls(page):
    assert page.analytics_enabled is False
    assert page.get_api_info()["named_endpoints"] == {}
    assert ExplorerArguments().host == "127.0.0.1"


@pytest.mark.parametrize("name", ["classifier", "linformer"])
def test_a_page_starts_with_any_encoder(name, request):
    """With one layer and without slots too."""
    folder = request.getfixturevalue(name)
    texts = [block.value for block in build_page([folder]).blocks.values() if isinstance(block, gr.Markdown)]
    assert any(Path(folder).name in text for text in texts)


def test_a_page_starts_with_the_quickstart_where_it_is_there(linformer, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    assert dropdown(build_page(is_public=False)).value == UNTRAINED
    shutil.copytree(linformer, tmp_path / "runs" / "quickstart")
    assert dropdown(build_page(is_public=False)).value == str(Path("runs", "quickstart"))


def dropdown(page):
    return next(block for block in page.blocks.values() if isinstance(block, gr.Dropdown))


@pytest.mark.parametrize("port", [0, 65536])
def test_a_port_that_does_not_exist_is_refused(port):
    with pytest.raises(ValueError, match=f"--port is {port}; it must lie between 1 and 65535"):
        explore(ExplorerArguments(port=port))


@pytest.fixture(scope="module")
def served(classifier, linformer):  # noqa: F811
    page = serve_page([UNTRAINED, classifier], "127.0.0.1", prevent_thread_lock=True)
    yield page.local_url
    page.close(verbose=False)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("chromium is missing")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextmanager
def visit(browser, address, **options):
    """Open the page as a new visitor, who hears no error and sees no request to elsewhere."""
    context = browser.new_context(**options)
    context.set_default_timeout(WAIT)
    tab = context.new_page()
    trouble = []
    tab.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("request", lambda request: None if is_local(request.url, address) else trouble.append(request.url))
    try:
        tab.goto(address)
        tab.wait_for_selector("#rank_curves svg.marks")
        yield tab
    except Exception as error:
        error.add_note(f"The page said: {trouble}")
        raise
    finally:
        context.close()
    assert trouble == []


def is_local(url, address):
    return url.startswith((address, address.replace("http", "ws", 1), "data:", "blob:"))


def open_tab(tab, name):
    tab.get_by_role("tab", name=name, exact=True).click()


def slider(tab, label):
    return tab.locator(f"input[type=range][aria-label='range slider for {label}']:visible")


def wait_for_number(tab, picture, name, text):
    tab.wait_for_function(
        """([picture, name, text]) => [...document.querySelectorAll(`#${picture} dl div`)].some(
            row => row.querySelector("dt").textContent === name && row.querySelector("dd").textContent === text)""",
        arg=[picture, name, text],
    )


def choose(tab, name):
    """Write the name of a checkpoint, and press Enter."""
    box = tab.locator("#checkpoint input")
    box.fill(name)
    box.press("Enter")


def test_a_visit_on_a_desktop(browser, served, linformer, classifier):  # noqa: F811
    with visit(browser, served, viewport={"width": 1280, "height": 900}) as tab:
        # pictures follow a slider that is dragged, and one that is moved by keyboard
        before = tab.locator("#rank_curves svg.marks").inner_html()
        slider(tab, "Rank k").fill("30")
        wait_for_number(tab, "rank", "Rank k", f"30 of {MAP_TOKENS}")
        tab.wait_for_function(
            "before => document.querySelector('#rank_curves svg.marks').innerHTML !== before", arg=before
        )
        slider(tab, "Rank k").press("ArrowRight")
        wait_for_number(tab, "rank", "Rank k", f"31 of {MAP_TOKENS}")
        # of many quick drags the last one is drawn
        for step in range(20):
            slider(tab, "Rank k").fill(str(3 + 4 * (step % 7)))
        slider(tab, "Rank k").fill("33")
        wait_for_number(tab, "rank", "Rank k", f"33 of {MAP_TOKENS}")

        open_tab(tab, "Cost")
        slider(tab, "Length n").fill("4096")
        slider(tab, "Slots k").fill("512")
        wait_for_number(tab, "cost", "n, k", "4,096, 512")
        square, strip = (tab.locator(f"#cost .areas .{kind}").bounding_box() for kind in ("dense", "linformer"))
        assert square["width"] == pytest.approx(square["height"], abs=1)
        assert strip["height"] == pytest.approx(square["height"], abs=1)
        assert strip["width"] / square["width"] == pytest.approx(512 / 4096, abs=0.01)
        assert tab.locator("#cost_curves svg.marks").is_visible()

        # another checkpoint: a listed one, one that does not load, and a folder of this computer
        assert "untrained" in tab.locator("#status").inner_text()
        with visit(browser, served) as other:
            choose(tab, classifier)
            tab.locator("#status", has_text="bert").wait_for()
            open_tab(tab, "Slots")
            tab.locator("#slots", has_text="no slots").wait_for()
            open_tab(tab, "Try")
            tab.locator("#answers", has_text="neither").wait_for()
            choose(tab, "nobody/nothing-<b>at all</b>")
            tab.get_by_text("does not load").first.wait_for()
            assert "bert" in tab.locator("#status").inner_text()
            choose(tab, linformer)
            tab.locator("#status", has_text="k = 8").wait_for()
            open_tab(tab, "Slots")
            tab.locator("#slots figcaption", has_text="8 slots").wait_for()
            slider(tab, "Layer").fill("3")
            slider(tab, "Slot").fill("8")
            tab.locator("#slot_tokens").get_by_text("%").first.wait_for()
            assert "untrained" in other.locator("#status").inner_text()  # visitors do not see each other's choice

        # a mistake is said where the picture would be, and the page lives on
        open_tab(tab, "Try")
        box = tab.locator("textarea:visible").first
        box.fill("no mask here")
        tab.get_by_role("button", name="Predict").click()
        tab.locator("#answers_from", has_text="The text holds 0 masks").wait_for()
        box.fill("the [MASK] is")
        tab.get_by_role("button", name="Predict").click()
        tab.locator("#answers_from", has_text="masked_lm").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_in_light_and_dark(browser, served, scheme):
    with visit(browser, served, viewport={"width": 375, "height": 812}, color_scheme=scheme) as tab:
        for name in TABS:
            open_tab(tab, name)
            assert tab.evaluate("document.documentElement.scrollWidth") <= 375
        ink = tab.locator("#answers_from").evaluate("box => getComputedStyle(box).color")
        lightness = sum(map(int, re.findall(r"\d+", ink)[:3])) / 3
        assert (lightness > 128) == (scheme == "dark")

"""The explorer: its mathematics against numpy, and its page driven in a real browser."""

import base64
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from conftest import enliven, tiny_config


gr = pytest.importorskip("gradio", reason="gradio is missing: pip install linformer_hf[explore]")
pytest.importorskip("datasets", reason="datasets is missing: pip install linformer_hf[explore]")

from matplotlib import colormaps  # noqa: E402  (these need the packages asked for above)
from PIL import Image  # noqa: E402
from transformers import BertConfig, BertForSequenceClassification, pipeline  # noqa: E402

from linformer_hf import LinformerForMaskedLM  # noqa: E402
from linformer_hf.data.blocks import train_tokenizer  # noqa: E402
from linformer_hf.explorer.models import (  # noqa: E402
    MOST_CHARACTERS,
    UNTRAINED,
    answer,
    attend,
    load_checkpoint,
    slot_weights,
)
from linformer_hf.explorer.page import (  # noqa: E402
    EXAMPLE,
    MAP_TOKENS,
    MASKED_EXAMPLE,
    SYNTHETIC,
    ExplorerArguments,
    build_page,
    explore,
    open_page,
    show_rank,
    show_slots,
)
from linformer_hf.explorer.space import write_space  # noqa: E402
from linformer_hf.explorer.views import synthetic_map, view_rank  # noqa: E402


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TABS = ("Rank", "Cost", "Slots", "Try")
WAIT = 30_000  # milliseconds, on a busy machine


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([EXAMPLE, MASKED_EXAMPLE], 300, 32)


@pytest.fixture(scope="module")
def linformer(tokenizer, tmp_path_factory):
    """A folder with a Linformer of three layers, whose heads have projections of their own."""
    folder = tmp_path_factory.mktemp("linformer")
    config = tiny_config(vocab_size=len(tokenizer), num_hidden_layers=3, projection_sharing="none")
    enliven(LinformerForMaskedLM(config)).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def classifier(tokenizer, tmp_path_factory):
    """A folder with a dense classifier."""
    folder = tmp_path_factory.mktemp("classifier")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    labels = {"id2label": {0: "good", 1: "bad", 2: "neither"}, "label2id": {"good": 0, "bad": 1, "neither": 2}}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes, **labels)
    enliven(BertForSequenceClassification(config)).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def exponential_map(decay, size):
    """The synthetic map, entry by entry from its definition."""
    cosines = np.array([[np.cos(np.pi / size * i * (j + 0.5)) for j in range(size)] for i in range(size)])
    cosines *= np.where(np.arange(size) == 0, 1, 2)[:, None] ** 0.5 / size**0.5
    return sum(np.exp(-decay * i) * np.outer(cosines[i], cosines[i]) for i in range(size))


def kept_share(decay, rank, size=MAP_TOKENS):
    """Energy of the first terms of a geometric series."""
    return (1 - np.exp(-2 * decay * rank)) / (1 - np.exp(-2 * decay * size))


@pytest.mark.parametrize("decay", [0.02, 0.3, 1.0])
def test_the_synthetic_map_has_the_spectrum_it_promises_and_rows_that_sum_to_one(decay):
    found = synthetic_map(decay, 24).numpy()
    np.testing.assert_allclose(found, exponential_map(decay, 24), atol=1e-12)
    np.testing.assert_allclose(np.linalg.svd(found)[1], np.exp(-decay * np.arange(24)), atol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)


@pytest.mark.parametrize("shape", [(9, 9), (12, 5), (4, 7)])
def test_the_copy_is_the_best_of_its_rank_and_its_numbers_are_those_of_numpy(shape):
    original = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    left, values, right = np.linalg.svd(original.double().numpy(), full_matrices=False)
    for rank in (1, 3, 100):
        view = view_rank(original, rank)
        kept = min(rank, len(values))
        best = sum(values[i] * np.outer(left[:, i], right[i]) for i in range(kept))
        distance = np.linalg.norm(original.numpy() - best)
        assert view.rank == kept
        np.testing.assert_allclose(view.copy.numpy(), best, atol=1e-12)
        np.testing.assert_allclose(view.distance, distance, atol=1e-6)
        np.testing.assert_allclose(view.error, distance / np.linalg.norm(original.numpy()), atol=1e-6)
        np.testing.assert_allclose(view.energy[kept - 1], (values[:kept] ** 2).sum() / (values**2).sum())


def test_a_drag_is_drawn_at_once():
    def seconds(rank):
        start = time.process_time()
        show_rank(SYNTHETIC, rank, 0.1, UNTRAINED, EXAMPLE, 1, 1)
        return time.process_time() - start

    assert min(seconds(rank) for rank in range(1, 7)) < 0.15


def test_slots_read_what_the_weights_of_their_head_say(linformer):
    checkpoint = load_checkpoint(linformer)
    weights = checkpoint.model.state_dict()
    for side, name in (("keys", "key_projection"), ("values", "value_projection")):
        expected = weights[f"linformer.layers.2.attention.{name}.weight"][1, :, :11]
        assert torch.equal(slot_weights(checkpoint, 2, 1, side, 11), expected)


def test_a_slot_of_a_pooling_reads_its_window(tokenizer, tmp_path):
    config = tiny_config(vocab_size=len(tokenizer), projection_type="mean_pool")
    LinformerForMaskedLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = slot_weights(load_checkpoint(str(tmp_path)), 0, 0, "keys", 10)
    windows = [[1.0 if token // 4 == slot else 0.0 for token in range(10)] for slot in range(8)]
    assert found.tolist() == windows


def test_answers_are_those_of_the_pipelines(linformer, classifier):
    words = pipeline("fill-mask", linformer, top_k=8)(MASKED_EXAMPLE.replace("[MASK]", "<mask>"))
    found = answer(load_checkpoint(linformer), MASKED_EXAMPLE)
    assert list(found.values())[0] == pytest.approx(words[0]["score"], abs=1e-5)
    assert list(found)[0] == words[0]["token_str"].strip()
    classes = pipeline("text-classification", classifier, top_k=None)([EXAMPLE])[0]
    found = answer(load_checkpoint(classifier), EXAMPLE)
    assert list(found) == [each["label"] for each in classes]
    assert list(found.values()) == pytest.approx([each["score"] for each in classes], abs=1e-5)


@pytest.mark.parametrize(
    ("text", "said"), [("no mask", "holds 0 masks"), ("<mask> [MASK]", "2 masks"), (" ", "empty")]
)
def test_a_text_without_exactly_one_mask_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        answer(load_checkpoint(UNTRAINED), text)


def test_a_text_of_ten_megabytes_is_refused_before_it_is_read():
    for refuse in (lambda text: attend(UNTRAINED, text), lambda text: answer(load_checkpoint(UNTRAINED), text)):
        with pytest.raises(ValueError, match=f"10,000,000 characters; this page reads up to {MOST_CHARACTERS:,}"):
            refuse("word " * 2_000_000)


def test_a_text_is_shown_and_never_run():
    drawn = show_slots(UNTRAINED, "<script>alert(1)</script>", 1, 1, 1, "Keys, E")
    assert "&lt;" in drawn
    own = {"div", "figure", "i", "img", "span", "figcaption", "p", "ol", "li", "b"}
    assert set(re.findall(r"<(\w+)", drawn)) == own


def test_loading_runs_no_code_of_a_checkpoint(classifier, tmp_path):
    folder, trace = tmp_path / "model", tmp_path / "trace"
    shutil.copytree(classifier, folder)
    code = f"open({str(trace)!r}, 'w')\nfrom transformers import BertConfig\nclass Own(BertConfig):\n    pass\n"
    (folder / "own.py").write_text(code)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "own"}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "own.Own"}}))
    with pytest.raises(ValueError, match="does not load"):
        load_checkpoint(str(folder))
    assert not trace.exists()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a folder without the quickstart."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("empty"))
    try:
        return build_page()
    finally:
        os.chdir(before)


def test_every_control_says_what_it_does(page):
    controls = [block for block in page.blocks.values() if isinstance(block, gr.Slider | gr.Radio | gr.Textbox)]
    assert len(controls) == 16
    assert [control.label for control in controls if not control.info] == []


def test_the_page_reports_to_nobody(page):
    assert page.analytics_enabled is False
    assert ExplorerArguments().host == "127.0.0.1"


@pytest.fixture(scope="module")
def address(page):
    open_page(page, "127.0.0.1", free_port(), prevent_thread_lock=True)
    yield page.local_url
    page.close(verbose=False)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
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
    tab.goto(address)
    tab.wait_for_selector("#rank dl")
    yield tab
    assert trouble == []
    context.close()


def is_local(url, address):
    return url.startswith((address, address.replace("http", "ws", 1), "data:", "blob:"))


def open_tab(tab, name):
    tab.get_by_role("tab", name=name, exact=True).click()


def move(tab, label, value):
    """Drag the visible slider of that name."""
    tab.locator(f"input[type=range][aria-label='range slider for {label}']:visible").fill(str(value))


def number(tab, picture, name):
    """Read the number under a name."""
    row = tab.locator(f"#{picture} dl div").filter(has=tab.locator("dt", has_text=re.compile(f"^{re.escape(name)}$")))
    return row.locator("dd").inner_text()


def wait_for(tab, picture, name, text):
    tab.wait_for_function(
        """([picture, name, text]) => [...document.querySelectorAll(`#${picture} dl div`)].some(
            row => row.querySelector("dt").textContent === name && row.querySelector("dd").textContent === text)""",
        arg=[picture, name, text],
    )


def pixels(tab, picture, index):
    source = tab.locator(f"#{picture} img").nth(index).get_attribute("src")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))))


def test_the_rank_tab_follows_its_sliders_as_the_mathematics_says(browser, address):
    with visit(browser, address) as tab:
        for decay, rank in ((0.1, 20), (0.3, 20), (0.3, 3)):
            move(tab, "Decay", decay)
            move(tab, "Rank k", rank)
            share = kept_share(decay, rank)
            wait_for(tab, "rank", "Kept energy", f"{100 * share:.2f} %")
            wait_for(tab, "rank", "k", f"{rank} of {MAP_TOKENS}")
            original = exponential_map(decay, MAP_TOKENS)
            left, values, right = np.linalg.svd(original)
            best = left[:, :rank] * values[:rank] @ right[:rank]
            assert number(tab, "rank", "Frobenius error") == f"{np.linalg.norm(original - best):.4f}"
            assert number(tab, "rank", "Relative error") == f"{100 * (1 - share) ** 0.5:.2f} %"
            for index, drawn in enumerate((original, best)):
                shades = np.clip(drawn / original.max(), 0, 1) ** 0.5
                expected = colormaps["viridis"](shades, bytes=True)[..., :3].astype(int)
                assert np.abs(pixels(tab, "rank", index) - expected).max() <= 2


def test_sliders_move_by_keyboard(browser, address):
    with visit(browser, address) as tab:
        slider = tab.locator("input[type=range][aria-label='range slider for Rank k']")
        slider.focus()
        for _ in range(3):
            slider.press("ArrowRight")
        wait_for(tab, "rank", "k", f"11 of {MAP_TOKENS}")


def test_twenty_quick_drags_leave_the_page_responsive(browser, address):
    with visit(browser, address) as tab:
        for step in range(20):
            move(tab, "Rank k", 3 + 4 * (step % 7))
        move(tab, "Rank k", 33)
        start = time.monotonic()
        wait_for(tab, "rank", "k", f"33 of {MAP_TOKENS}")
        assert time.monotonic() - start < 10


def test_the_cost_tab_is_to_scale_and_counts_as_the_formulas_do(browser, address):
    layers, width, mlp = 12, 768, 3072
    with visit(browser, address) as tab:
        open_tab(tab, "Cost")
        before = tab.locator("#cost .chart path.line.linformer").get_attribute("d")
        for tokens, slots, kept in ((4096, 128, 128), (4096, 512, 512), (256, 512, 256)):
            move(tab, "Length n", tokens)
            move(tab, "Slots k", slots)
            wait_for(tab, "cost", "n, k", f"{tokens:,}, {kept:,}")
            square, strip = (tab.locator(f"#cost rect.{kind}") for kind in ("dense", "linformer"))
            sides = [[float(rect.get_attribute(side)) for side in ("width", "height")] for rect in (square, strip)]
            assert sides[0][0] == sides[0][1] == sides[1][1]
            assert sides[1][0] / sides[0][0] == pytest.approx(kept / tokens, rel=1e-4)
            dense = layers * (4 * tokens * width**2 + 2 * tokens**2 * width + 2 * tokens * width * mlp)
            maps = 2 * tokens * width**2 + 2 * kept * width**2
            attention = kept * tokens * width + 2 * tokens * kept * width
            linformer = layers * (maps + attention + 2 * tokens * width * mlp)
            assert number(tab, "cost", "Predicted speed-up") == f"{dense / linformer:.2f} ×"
            assert number(tab, "cost", "Multiplies, dense") == f"{dense / 1e9:.3g} G"
            assert number(tab, "cost", "Multiplies, Linformer") == f"{linformer / 1e9:.3g} G"
        assert tab.locator("#cost .chart path.line.linformer").get_attribute("d") != before
        fused = number(tab, "cost", "Kept bytes, dense")
        tab.get_by_text("Plain, which keeps the maps").click()
        tab.wait_for_function(f"!document.querySelector('#cost').textContent.includes('{fused}')")


def load(tab, name):
    """Ask for another checkpoint."""
    tab.get_by_text("Another checkpoint").click()
    box = tab.get_by_placeholder("you/my-linformer")
    box.fill(name)
    box.press("Enter")


def test_a_checkpoint_is_loaded_and_its_slots_head_and_answers_are_its_own(browser, address, linformer):
    with visit(browser, address) as tab:
        assert "untrained" in tab.locator("#status").inner_text()
        load(tab, linformer)
        tab.locator("#status", has_text="k = 8").wait_for()
        open_tab(tab, "Slots")
        tab.locator("#slots figcaption", has_text="8 slots").wait_for()
        tab.wait_for_function(
            "[...document.querySelectorAll('input[type=range]')].filter(input => "
            "input.getAttribute('aria-label') === 'range slider for Slot')[0].max === '8'"
        )
        move(tab, "Layer", 3)
        move(tab, "Head", 2)
        move(tab, "Slot", 5)
        attended = attend(linformer, EXAMPLE)
        state = load_checkpoint(linformer).model.state_dict()
        matrix = state["linformer.layers.2.attention.key_projection.weight"][1]
        weights = matrix[4, : len(attended.tokens)].numpy()
        order = np.argsort(-np.abs(weights), kind="stable")[:8]
        tab.locator("#slots li", has_text=f"{weights[order[0]]:+.3f}").wait_for()
        shown = tab.locator("#slots li").evaluate_all("rows => rows.map(row => row.innerText.split('\\n'))")
        assert shown == [[f"{place + 1} {attended.tokens[place]}", f"{weights[place]:+.3f}"] for place in order]

        open_tab(tab, "Rank")
        tab.get_by_text("A head of the checkpoint").click()
        move(tab, "Layer", 2)
        values = np.linalg.svd(attended.maps[1][0].double().numpy())[1]
        wait_for(tab, "rank", "k", f"8 of {len(values)}")
        move(tab, "Rank k", 2)
        share = (values[:2] ** 2).sum() / (values**2).sum()
        wait_for(tab, "rank", "Kept energy", f"{100 * share:.2f} %")

        open_tab(tab, "Try")
        likeliest, share = next(iter(answer(load_checkpoint(linformer), MASKED_EXAMPLE).items()))
        row = tab.locator("#answers li").first
        assert row.inner_text().split("\n") == [likeliest, f"{100 * share:.2f} %"]


def test_visitors_do_not_see_each_other(browser, address, classifier):
    with visit(browser, address) as first, visit(browser, address) as second:
        load(first, classifier)
        first.locator("#status", has_text="a bert").wait_for()
        move(first, "Rank k", 40)
        wait_for(first, "rank", "k", f"40 of {MAP_TOKENS}")
        move(second, "Rank k", 5)
        wait_for(second, "rank", "k", f"5 of {MAP_TOKENS}")
        assert number(first, "rank", "k") == f"40 of {MAP_TOKENS}"
        assert "untrained" in second.locator("#status").inner_text()
        open_tab(second, "Slots")
        assert "16 slots" in second.locator("#slots").inner_text()
        open_tab(first, "Slots")
        first.locator("#slots", has_text="no slots").wait_for()
        open_tab(first, "Try")
        assert first.locator("#answers li").count() == 3


def test_a_wrong_checkpoint_is_an_error_in_the_page_which_lives_on(browser, address):
    with visit(browser, address) as tab:
        load(tab, "nobody/nothing-<b>at all</b>")
        tab.get_by_text("does not load").first.wait_for()
        assert "untrained" in tab.locator("#status").inner_text()
        move(tab, "Rank k", 12)
        wait_for(tab, "rank", "k", f"12 of {MAP_TOKENS}")


def test_a_text_of_ten_megabytes_is_refused_in_the_page(browser, address):
    with visit(browser, address) as tab:
        open_tab(tab, "Try")
        box = tab.locator("textarea:visible").first
        box.evaluate("box => { box.value = 'word '.repeat(2000000); box.dispatchEvent(new Event('input')); }")
        tab.get_by_role("button", name="Ask").click()
        tab.locator("#answers", has_text="10,000,000 characters").wait_for()
        box.fill("the [MASK] is")
        tab.get_by_role("button", name="Ask").click()
        tab.locator("#answers li").first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_in_light_and_dark(browser, address, scheme):
    with visit(browser, address, viewport={"width": 375, "height": 812}, color_scheme=scheme) as tab:
        for name in TABS:
            open_tab(tab, name)
            assert tab.evaluate("document.documentElement.scrollWidth") <= 375
        ink = tab.locator("#answers").evaluate("box => getComputedStyle(box).color")
        lightness = sum(map(int, re.findall(r"\d+", ink)[:3])) / 3
        assert (lightness > 128) == (scheme == "dark")


def test_a_space_starts_from_its_folder(linformer, tmp_path):
    folder = write_space(tmp_path / "space", linformer)
    card = (folder / "README.md").read_text("utf-8")
    assert f"sdk: gradio\nsdk_version: {gr.__version__}\napp_file: app.py\n" in card
    assert f"gradio=={gr.__version__}\n" in (folder / "requirements.txt").read_text()
    # the package that it runs is its own copy
    (folder / "app.py").write_text(
        "import linformer_hf\nprint(linformer_hf.__file__)\n" + (folder / "app.py").read_text()
    )
    port = free_port()
    environment = os.environ | {"GRADIO_SERVER_PORT": str(port), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with open(tmp_path / "log", "w") as log:
        space = subprocess.Popen([sys.executable, "-u", "app.py"], cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        content = ask(f"http://127.0.0.1:{port}", space)
    finally:
        space.terminate()
        space.wait()
    assert "Linformer explorer" in content and "k = 8" in content
    assert (tmp_path / "log").read_text().startswith(str(folder))  # the package is its own copy


def ask(url, process, seconds=90):
    """Fetch an address as soon as the process serves it."""
    for _ in range(4 * seconds):
        try:
            return urllib.request.urlopen(url).read().decode()
        except OSError:
            assert process.poll() is None, "the process has ended"
            time.sleep(0.25)
    raise AssertionError(f"nothing is served in {seconds} seconds")


def test_a_space_is_not_written_over_something(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; name a new folder"):
        explore(ExplorerArguments(model_name_or_path=UNTRAINED, space=str(tmp_path)))
    assert [file.name for file in tmp_path.iterdir()] == ["note.txt"]


def test_a_port_that_is_none_is_refused():
    with pytest.raises(ValueError, match="--port is 0"):
        explore(ExplorerArguments(port=0))

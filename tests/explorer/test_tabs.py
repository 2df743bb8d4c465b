"""What the tabs show: their mathematics against numpy and formulas, their answers against the models' own outputs."""

import re
import shutil

import numpy as np
import pytest
import torch
from conftest import tiny_config
from explored import (
    EXAMPLE,
    MANY_TOKENS,
    MASKED_EXAMPLE,
    NAMES,
    bert_config,
    classifier,  # noqa: F401 (a fixture)
    encoder,  # noqa: F401 (a fixture)
    linformer,  # noqa: F401 (a fixture)
    save,
    tagger,  # noqa: F401 (a fixture)
    tokenizer,  # noqa: F401 (a fixture)
)
from matplotlib import colormaps
from transformers import BertForQuestionAnswering, BertForSequenceClassification

from linformer_hf import LinformerForMaskedLM
from linformer_hf.explorer.checkpoints import MOST_CHARACTERS, UNTRAINED, load_checkpoint, tokenize
from linformer_hf.explorer.drawing import draw_dots
from linformer_hf.explorer.store import CheckpointStore
from linformer_hf.explorer.tab_answers import MOST_LINES, answer, show_answers
from linformer_hf.explorer.tab_cost import CHOSEN, DENSE, LINFORMER, show_cost
from linformer_hf.explorer.tab_rank import (
    ENERGY,
    ERROR,
    MAP_TOKENS,
    REAL,
    SYNTHETIC,
    approximate,
    show_rank,
    synthetic_map,
)
from linformer_hf.explorer.tab_slots import show_slots, slot_weights


@pytest.fixture(scope="module")
def untrained():
    return CheckpointStore([UNTRAINED], is_public=True)


def store_of(folder):
    return CheckpointStore([folder], is_public=False)


def exponential_map(decay, size):
    """The synthetic map, entry by entry from its definition."""
    cosines = np.array([[np.cos(np.pi / size * i * (j + 0.5)) for j in range(size)] for i in range(size)])
    cosines *= np.where(np.arange(size) == 0, 1, 2)[:, None] ** 0.5 / size**0.5
    return sum(np.exp(-decay * i) * np.outer(cosines[i], cosines[i]) for i in range(size))


def numbers_of(picture):
    """Read the numbers under their names."""
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", picture))


def curve(points, label):
    """Read the points of one line off the table of a plot."""
    line = points[points["Line"] == label]
    return dict(zip(line.iloc[:, 0], line.iloc[:, 1]))


@pytest.mark.parametrize("decay", [0.02, 0.3, 1.0])
def test_the_synthetic_map_has_the_spectrum_it_promises_and_rows_that_sum_to_one(decay):
    found = synthetic_map(decay, 24).numpy()
    np.testing.assert_allclose(found, exponential_map(decay, 24), atol=1e-12)
    np.testing.assert_allclose(np.linalg.svd(found)[1], np.exp(-decay * np.arange(24)), atol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)


@pytest.mark.parametrize("shape", [(9, 9), (12, 5), (4, 7)])
def test_the_approximation_is_the_best_of_its_rank_and_its_numbers_are_those_of_numpy(shape):
    original = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    left, singular, right = np.linalg.svd(original.double().numpy(), full_matrices=False)
    for rank in (1, 3, 100):
        found = approximate(original, rank)
        kept = min(rank, len(singular))
        best = sum(singular[i] * np.outer(left[:, i], right[i]) for i in range(kept))
        distance = np.linalg.norm(original.numpy() - best)
        assert found.rank == kept
        np.testing.assert_allclose(found.approximation.numpy(), best, atol=1e-12)
        np.testing.assert_allclose(found.distance, distance, atol=1e-6)
        np.testing.assert_allclose(found.errors[kept - 1], distance / np.linalg.norm(original.numpy()), atol=1e-6)
        np.testing.assert_allclose(found.energy[kept - 1], (singular[:kept] ** 2).sum() / (singular**2).sum())


@pytest.mark.parametrize(("decay", "rank"), [(0.1, 20), (0.3, 3), (0.02, 50)])
def test_the_rank_tab_shows_numbers_and_curves_of_the_mathematics(untrained, decay, rank):
    picture, points = show_rank(untrained, SYNTHETIC, rank, decay, UNTRAINED, EXAMPLE, 1, 1)
    original = exponential_map(decay, MAP_TOKENS)
    left, singular, right = np.linalg.svd(original)
    best = left[:, :rank] * singular[:rank] @ right[:rank]
    share = (1 - np.exp(-2 * decay * rank)) / (1 - np.exp(-2 * decay * MAP_TOKENS))  # of a geometric series
    numbers = numbers_of(picture)
    assert numbers["Rank k"] == f"{rank} of {MAP_TOKENS}"
    assert numbers["Kept energy"] == f"{100 * share:.2f} %"
    assert numbers["Relative error"] == f"{100 * (1 - share) ** 0.5:.2f} %"
    assert numbers["Frobenius error"] == f"{np.linalg.norm(original - best):.4f}"
    errors, energy = curve(points, ERROR), curve(points, ENERGY)
    assert errors[0] == 1 and energy[0] == 0
    assert errors[rank] == pytest.approx((1 - share) ** 0.5)
    assert energy[rank] == pytest.approx(share)
    assert max(errors) == max(energy) == MAP_TOKENS


def test_a_map_is_drawn_from_dark_at_zero_to_light_at_the_largest():
    import base64
    import io

    from PIL import Image

    values = np.array([[0.0, -1.0], [0.25, 1.0]])
    source = re.search(r"base64,(.*?)\"", draw_dots(values, "a map", None)).group(1)
    shades = np.array([[0.0, 0.0], [0.5, 1.0]])  # square roots
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(source))))
    assert (drawn == colormaps["viridis"](shades, bytes=True)[..., :3]).all()


def test_dragging_through_the_maps_of_a_head_runs_the_model_once(linformer):  # noqa: F811
    store = store_of(linformer)
    checkpoint, runs = store.get(linformer), []
    checkpoint.model.register_forward_hook(lambda *_: runs.append(1))
    for rank, layer, head in ((1, 1, 1), (2, 1, 2), (7, 3, 1), (8, 2, 2)):
        show_rank(store, REAL, rank, 0.1, linformer, EXAMPLE, layer, head)
    show_slots(store, linformer, EXAMPLE, 2, 1, 1, "Keys, E")
    assert len(runs) == 1
    show_rank(store, REAL, 1, 0.1, linformer, MASKED_EXAMPLE, 1, 1)
    assert len(runs) == 2


def test_the_map_of_a_head_is_that_of_the_model(linformer):  # noqa: F811
    store = store_of(linformer)
    checkpoint = store.get(linformer)
    read = tokenize(checkpoint.tokenizer, EXAMPLE)
    expected = checkpoint.model(input_ids=read.input_ids, output_attentions=True).attentions[1][0, 1]
    singular = np.linalg.svd(expected.detach().double().numpy())[1]
    picture, _ = show_rank(store, REAL, 2, 0.1, linformer, EXAMPLE, 2, 2)
    share = (singular[:2] ** 2).sum() / (singular**2).sum()
    assert numbers_of(picture)["Kept energy"] == f"{100 * share:.2f} %"
    assert f"{len(read.tokens)} tokens (rows) × 8 slots (columns)" in picture


def macs(tokens, slots=None):
    """MACs of twelve layers of width 768, dense where no slots are named."""
    layers, width, mlp = 12, 768, 3072
    keys = tokens if slots is None else slots
    compression = 0 if slots is None else slots * tokens * width
    maps = 2 * tokens * width**2 + 2 * keys * width**2
    return layers * (maps + compression + 2 * tokens * keys * width + 2 * tokens * width * mlp)


@pytest.mark.parametrize(("tokens", "slots", "kept"), [(4096, 128, 128), (4096, 512, 512), (256, 512, 256)])
def test_the_cost_tab_is_to_scale_and_counts_as_the_formulas_do(tokens, slots, kept):
    picture, points = show_cost(tokens, slots, "Fused (SDPA)")
    dense, linear = macs(tokens), macs(tokens, kept)
    numbers = numbers_of(picture)
    assert numbers["n, k"] == f"{tokens:,}, {kept:,}"
    assert numbers["Dense / Linformer"] == f"{dense / linear:.2f} ×"
    assert numbers["MACs, dense"] == f"{dense / 1e9:.3g} G"
    assert numbers["MACs, Linformer"] == f"{linear / 1e9:.3g} G"
    strip = float(re.search(r'class="linformer" style="width: ([\d.]+)%"', picture).group(1))
    assert strip == pytest.approx(100 * kept / tokens, rel=1e-4)
    assert curve(points, DENSE)[tokens] == pytest.approx(dense / tokens / 1e6)
    assert curve(points, LINFORMER)[tokens] == pytest.approx(linear / tokens / 1e6)
    assert set(curve(points, CHOSEN)) == {tokens}


def test_a_plain_kernel_saves_more_activations():
    name = "Saved activations, dense"
    fused, plain = (numbers_of(show_cost(2048, 128, kernel)[0])[name] for kernel in ("Fused (SDPA)", "Plain (eager)"))
    assert fused.endswith("GB") and plain.endswith("GB")
    assert float(plain.split()[0]) > float(fused.split()[0])


def test_slots_read_what_the_weights_of_their_head_say(linformer):  # noqa: F811
    checkpoint = load_checkpoint(linformer)
    weights = checkpoint.model.state_dict()
    for side, name in (("keys", "key_projection"), ("values", "value_projection")):
        expected = weights[f"linformer.layers.2.attention.{name}.weight"][1, :, :11]
        assert torch.equal(slot_weights(checkpoint, 2, 1, side, 11), expected)


def test_the_listed_tokens_are_those_of_the_largest_weights(linformer):  # noqa: F811
    store = store_of(linformer)
    checkpoint = store.get(linformer)
    tokens = tokenize(checkpoint.tokenizer, EXAMPLE).tokens
    matrix = checkpoint.model.state_dict()["linformer.layers.2.attention.key_projection.weight"][1]
    weights = matrix[4, : len(tokens)].numpy()
    order = np.argsort(-np.abs(weights), kind="stable")[:8]
    _, listed = show_slots(store, linformer, EXAMPLE, 5, 3, 2, "Keys, E")
    assert list(listed) == [f"{place + 1} {tokens[place]} ({weights[place]:+.3f})" for place in order]
    assert list(listed.values()) == pytest.approx((np.abs(weights[order]) / np.abs(weights).sum()).tolist())


def test_a_slot_of_a_pooling_reads_its_window(tokenizer, tmp_path):  # noqa: F811
    config = tiny_config(vocab_size=len(tokenizer), projection_type="mean_pool")
    folder = save(LinformerForMaskedLM(config), tokenizer, tmp_path)
    found = slot_weights(load_checkpoint(folder), 0, 0, "keys", 10)
    windows = [[1.0 if token // 4 == slot else 0.0 for token in range(10)] for slot in range(8)]
    assert found.tolist() == windows


def test_a_dense_model_has_no_slots_to_show(classifier):  # noqa: F811
    picture, listed = show_slots(store_of(classifier), classifier, EXAMPLE, 1, 1, 1, "Keys, E")
    assert "is a bert, which has no slots" in picture and 'role="alert"' in picture
    assert listed is None


def test_a_mask_is_filled_with_the_likeliest_words(linformer):  # noqa: F811
    checkpoint = load_checkpoint(linformer)
    ids = checkpoint.tokenizer(MASKED_EXAMPLE.replace("[MASK]", "<mask>"), return_tensors="pt").input_ids
    place = ids[0].tolist().index(checkpoint.tokenizer.mask_token_id)
    shares = checkpoint.model(ids).logits[0, place].softmax(-1)
    expected = {}
    for word in shares.argsort(descending=True)[:8]:
        expected.setdefault(checkpoint.tokenizer.decode([word]).strip(), shares[word].item())
    assert answer(checkpoint, MASKED_EXAMPLE) == pytest.approx(expected, abs=1e-5)


def test_a_text_is_classified_with_the_names_of_the_classes(classifier):  # noqa: F811
    checkpoint = load_checkpoint(classifier)
    shares = checkpoint.model(**checkpoint.tokenizer(EXAMPLE, return_tensors="pt")).logits[0].softmax(-1).tolist()
    found = answer(checkpoint, EXAMPLE)
    assert found == pytest.approx(dict(zip(NAMES.values(), shares)), abs=1e-5)
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_a_regression_answers_with_its_number(tokenizer, tmp_path):  # noqa: F811
    model = BertForSequenceClassification(bert_config(tokenizer, {0: "stars"}))
    folder = save(model, tokenizer, tmp_path)
    store = store_of(folder)
    expected = store.get(folder).model(**tokenizer(EXAMPLE, return_tensors="pt")).logits.item()
    assert answer(store.get(folder), EXAMPLE) == pytest.approx(expected, abs=1e-5)
    picture, scores = show_answers(store, folder, EXAMPLE)
    assert numbers_of(picture) == {"stars": f"{expected:.4g}"} and scores is None


def test_entities_are_named_with_their_class(tagger):  # noqa: F811
    checkpoint = load_checkpoint(tagger)
    read = tokenize(checkpoint.tokenizer, EXAMPLE)
    classes = checkpoint.model(read.input_ids).logits[0, 1:-1].argmax(-1).tolist()
    assert 0 < sum(classes) < len(classes)
    found = answer(checkpoint, EXAMPLE)
    assert all(name.endswith(": PLACE") and name.removesuffix(": PLACE") in EXAMPLE for name in found)


def test_lines_are_compared_with_the_first_as_the_encoder_pools(encoder):  # noqa: F811
    checkpoint = load_checkpoint(encoder)
    lines = ["The file is closed.", "The object is deleted, and bytes are written.", "the", "A method"]
    states = [checkpoint.model(**checkpoint.tokenizer(line, return_tensors="pt"))[0][0, 0] for line in lines]
    cosines = [torch.cosine_similarity(states[0], state, dim=0).item() for state in states[1:]]
    found = answer(checkpoint, "\n\n".join([*lines, lines[1]]))
    assert found == pytest.approx({line: max(cosine, 0) for line, cosine in zip(lines[1:], cosines)}, abs=1e-5)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    picture, _ = show_answers(store_of(encoder), encoder, "\n".join(lines))
    assert "cosine of each line with the first" in picture


@pytest.mark.parametrize(
    ("text", "count"), [("one line", 1), ("twice\ntwice ", 1), ("\n".join(map(str, range(MOST_LINES + 1))), 65)]
)
def test_a_text_without_lines_to_compare_is_refused(encoder, text, count):  # noqa: F811
    with pytest.raises(ValueError, match=f"below it 1 to {MOST_LINES - 1} others.* The text has {count}"):
        answer(load_checkpoint(encoder), text)


def test_an_encoder_that_pools_in_a_way_that_is_not_known_says_so(encoder, tmp_path):  # noqa: F811
    folder = shutil.copytree(encoder, tmp_path, dirs_exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "own"}')
    picture, scores = show_answers(store_of(str(folder)), str(folder), EXAMPLE)
    assert "its files do not say how it embeds a text" in picture and scores is None


def test_a_head_that_is_not_supported_is_named(tokenizer, tmp_path):  # noqa: F811
    folder = save(BertForQuestionAnswering(bert_config(tokenizer)), tokenizer, tmp_path)
    picture, scores = show_answers(store_of(folder), folder, EXAMPLE)
    assert "the head question_answering, which this tab does not support" in picture
    assert scores is None


@pytest.mark.parametrize(
    ("text", "said"), [("no mask", "holds 0 masks"), ("<mask> [MASK]", "2 masks"), (" ", "empty")]
)
def test_a_text_without_exactly_one_mask_is_refused(untrained, text, said):
    with pytest.raises(ValueError, match=said):
        answer(untrained.get(UNTRAINED), text)


def test_a_long_text_is_read_from_its_beginning(untrained):
    read = tokenize(untrained.get(UNTRAINED).tokenizer, "the file " * 400)
    assert read.is_cut and read.input_ids.shape == (1, 128)
    assert len(answer(untrained.get(UNTRAINED), MASKED_EXAMPLE + " the file" * 400)) > 0


def test_a_text_of_ten_megabytes_is_refused_before_it_is_tokenized(untrained):
    def refuse(*_, **__):
        raise AssertionError("the text was tokenized")

    with pytest.raises(ValueError, match=f"10,000,000 characters; this page reads up to {MOST_CHARACTERS:,}"):
        tokenize(refuse, MANY_TOKENS)
    shown = (
        show_rank(untrained, REAL, 2, 0.1, UNTRAINED, MANY_TOKENS, 1, 1),
        show_slots(untrained, UNTRAINED, MANY_TOKENS, 1, 1, 1, "Keys, E"),
        show_answers(untrained, UNTRAINED, MANY_TOKENS),
    )
    for picture, other in shown:
        assert "10,000,000 characters" in picture and other is None


def test_a_text_is_shown_and_never_run(untrained):
    picture, listed = show_slots(untrained, UNTRAINED, "<script>alert(1)</script>", 1, 1, 1, "Keys, E")
    assert "&lt;" in picture and any("<" in name for name in listed)  # the browser writes labels as text
    assert set(re.findall(r"<(\w+)", picture)) == {"div", "figure", "i", "img", "span", "figcaption"}


def test_an_untrained_model_is_the_same_each_time():
    first, second = (load_checkpoint(UNTRAINED).model.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)

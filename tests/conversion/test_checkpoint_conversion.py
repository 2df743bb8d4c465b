"""A saved dense encoder becomes a folder that loads anywhere, or nothing is written."""

import json
import math
import shutil
import subprocess
import sys

import pytest
import torch
import transformers
from conftest import FIRST_WORD, assert_close, random_ids
from dense_models import FAMILIES, LONGEST, dense_model
from transformers import AutoModel, AutoTokenizer

import linformer_hf
from linformer_hf.analysis.spectrum import SpectrumArguments, analyze_spectrum
from linformer_hf.conversion import checkpoint_conversion
from linformer_hf.conversion.checkpoint_conversion import ConversionArguments, convert_checkpoint
from linformer_hf.data.tokenizers import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([f"The cat sees {number} boats." for number in range(30)], 261, LONGEST)


@pytest.fixture(scope="module")
def checkpoint(tokenizer, tmp_path_factory):
    """A RoBERTa with a head for masked words, as a user has it."""
    folder = tmp_path_factory.mktemp("dense") / "roberta"
    dense_model("Roberta", "ForMaskedLM", torch.float32, vocab_size=261).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def convert(dense, output, projected_length=(LONGEST,), **options):
    projected_length = projected_length and list(projected_length)
    arguments = ConversionArguments(str(dense), str(output), projected_length=projected_length, **options)
    return convert_checkpoint(arguments)


def test_a_converted_folder_holds_all_that_it_needs_and_computes_the_same(checkpoint, tmp_path):
    report = convert(checkpoint, tmp_path / "out")
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"README.md", "config.json", "conversion.json", "model.safetensors", "modeling_linformer.py"} <= names
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    dense = transformers.AutoModelForMaskedLM.from_pretrained(checkpoint)
    ids = random_ids(2, LONGEST)
    assert_close(model(ids).logits, dense(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == LONGEST
    written = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert written["copied"] == report.copied and written["new"] == report.new
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert record["numbers"]["tensors_copied"] == len(report.copied)
    assert record["about"]["pipeline_tag"] == "fill-mask"
    with pytest.raises(ValueError, match="one already; `linformer resize`"):
        convert(tmp_path / "out", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_converted_folder_loads_without_the_package(checkpoint, tmp_path):
    convert(checkpoint, tmp_path / "out", projected_length=[5])
    code = (
        "import sys, torch, transformers\n"
        "model = transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "assert 'linformer_hf' not in sys.modules\n"
        f"ids = torch.arange({FIRST_WORD}, 23)[None]\n"
        "print(model(ids).logits.double().abs().sum().item())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        cwd=tmp_path,
        env={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "cache"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    model = linformer_hf.LinformerForMaskedLM.from_pretrained(tmp_path / "out")
    expected = model(torch.arange(FIRST_WORD, 23)[None]).logits.double().abs().sum().item()
    assert float(done.stdout) == pytest.approx(expected, rel=1e-5)


def test_another_head_is_new_and_the_report_says_so(checkpoint, tmp_path):
    report = convert(checkpoint, tmp_path / "out", head="sequence_classification")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    head = {name for name in model.state_dict() if name.startswith("classifier")}
    assert len(head) == 4 and head <= set(report.new)
    assert set(report.copied.values()) | set(report.new) == set(model.state_dict())
    assert {name for name in report.left_out if name.startswith("lm_head")}
    bare = convert(checkpoint, tmp_path / "bare", head="none")
    assert AutoModel.from_pretrained(tmp_path / "bare").config.architectures == ["LinformerModel"]
    assert {name.split(".")[0] for name in bare.left_out} == {"lm_head"}


def test_a_spectrum_chooses_the_slots_of_each_layer(checkpoint, tmp_path):
    words, folder = tmp_path / "words.txt", tmp_path / "spectrum"
    words.write_text("\n".join(f"The cat sees {number} boats." for number in range(90)))
    spectrum = analyze_spectrum(
        SpectrumArguments(
            model_name_or_path=str(checkpoint), output_dir=str(folder), train_file=[str(words)], max_texts=3
        )
    )
    file = folder / "spectrum.json"
    report = convert(
        checkpoint, tmp_path / "out", None, spectrum_file=str(file), energy=0.9, projection_sharing="key_value"
    )
    shares = torch.tensor(spectrum["energy"]).mean(1)  # over heads
    fewest = [next(k for k, share in enumerate(layer, start=1) if share >= 0.9) for layer in shares.tolist()]
    asked = [min(8 * math.ceil(k / 8), LONGEST) for k in fewest]
    model = AutoModel.from_pretrained(tmp_path / "out")
    assert model.config.projected_length == asked
    assert [layer.attention.projection.weight.shape[0] for layer in model.layers] == asked
    assert f"Slots: {asked}, for 90 %" in report.notes[-1]
    shared = convert(checkpoint, tmp_path / "shared", None, spectrum_file=str(file), energy=0.9)
    assert f"Slots: [{max(asked)}]" in shared.notes[-1]


def test_slots_are_asked_for_in_one_way(checkpoint, tmp_path):
    no_spectrum, short = tmp_path / "results.json", tmp_path / "spectrum.json"
    no_spectrum.write_text("{}")
    deep = tmp_path / "deep.json"
    deep.write_text(json.dumps({"energy": [[[0.5, 1.0]]] * 3, "longest_text": LONGEST}))
    short.write_text('{"energy": [[[0.5, 1.0]], [[0.9, 1.0]]], "longest_text": 8}')
    for options, reason in (
        ({"energy": 0.9}, "give both"),
        ({"spectrum_file": "spectrum.json"}, "give both"),
        ({"energy": 0.9, "spectrum_file": "spectrum.json", "projected_length": [5]}, "k is given twice"),
        ({"energy": 0.9, "spectrum_file": str(tmp_path / "missing.json")}, "missing.json, which is no file"),
        ({"energy": 0.9, "spectrum_file": str(no_spectrum)}, "is no spectrum"),
        ({"energy": 0.9, "spectrum_file": str(short), "projection_type": "mean_pool"}, "mean_pool has none"),
        ({"energy": 0.9, "spectrum_file": str(short), "max_seq_length": 16}, "measured on texts of 8 tokens"),
        (
            {"energy": 0.9, "spectrum_file": str(short)},
            f"measured on texts of 8 tokens, and the Linformer reads {LONGEST}",
        ),
        ({"energy": 1.5, "spectrum_file": str(short)}, "--energy is 1.5; it must be"),
        ({"energy": 0.9, "spectrum_file": str(deep)}, "deep.json is of a model of 3 layers, and this one has 2"),
    ):
        with pytest.raises(ValueError, match=reason):
            convert(checkpoint, tmp_path / "out", **{"projected_length": None, **options})
    assert not (tmp_path / "out").exists()


def test_slots_are_checked_before_a_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_conversion, "load_dense", None)
    (tmp_path / "dense").mkdir()
    with pytest.raises(ValueError, match="--energy is 1.5; it must be"):
        convert(tmp_path / "dense", tmp_path / "out", projected_length=None, spectrum_file="any.json", energy=1.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bare_encoder_gets_a_head_for_words_that_is_new(family, tmp_path, tokenizer):
    dense_model(family, dtype=torch.float32, vocab_size=261).save_pretrained(tmp_path / "dense")
    tokenizer.save_pretrained(tmp_path / "dense")
    report = convert(tmp_path / "dense", tmp_path / "out", head="masked_lm")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert set(report.copied.values()) & set(report.new) == set()
    assert set(report.copied.values()) | set(report.new) == set(model.state_dict())
    drawn = {name for name in report.new if name.startswith("lm_head") and name != "lm_head.decoder.weight"}
    assert drawn == {name for name in model.state_dict() if name.startswith("lm_head")} - {"lm_head.decoder.weight"}


def test_old_pickles_with_old_names_load(tokenizer, tmp_path):
    dense = dense_model("Bert", "ForPreTraining", torch.float32, vocab_size=261)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor.clone()
        for name, tensor in dense.state_dict().items()
        if "decoder" not in name
    }
    (tmp_path / "old").mkdir()
    torch.save(old, tmp_path / "old" / "pytorch_model.bin")
    dense.config.architectures = ["BertForPreTraining"]
    dense.config.save_pretrained(tmp_path / "old")
    tokenizer.save_pretrained(tmp_path / "old")
    report = convert(tmp_path / "old", tmp_path / "out")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    ids = random_ids(2, LONGEST)
    assert_close(model(ids).logits, dense(ids).prediction_logits)
    assert {"cls.seq_relationship.weight", "bert.pooler.dense.bias"} <= set(report.left_out)
    assert set(report.new) == {"linformer.projection.weight"}


def test_a_model_of_one_token_type_gets_a_tokenizer_without_them(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]
    tokenizer = transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    tokenizer.save_pretrained(tmp_path / "dense")
    dense_model("DistilBert", "ForSequenceClassification", torch.float32).save_pretrained(tmp_path / "dense")
    convert(tmp_path / "dense", tmp_path / "out")
    inputs = AutoTokenizer.from_pretrained(tmp_path / "out")("the cat", "sat", return_tensors="pt")
    assert inputs["input_ids"].tolist() == [[2, 5, 6, 3, 7, 3]]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model(**inputs).logits.shape == (1, 3)


def test_a_longer_folder_reads_longer_texts(checkpoint, tmp_path):
    convert(checkpoint, tmp_path / "out", projected_length=[6, 4], max_seq_length=80)
    model = AutoModel.from_pretrained(tmp_path / "out")
    assert model.config.projected_length == [6, 4]
    assert model(random_ids(1, 80)).last_hidden_state.shape == (1, 80, 16)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 80


def test_folders_that_will_not_do_are_refused_and_nothing_is_written(checkpoint, tokenizer, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty"):
        convert(checkpoint, full)
    assert [file.name for file in full.iterdir()] == ["notes.txt"]

    empty = shutil.copytree(checkpoint, tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        convert(empty, tmp_path / "out")

    without_tokenizer = tmp_path / "without_tokenizer"
    dense_model("Bert", dtype=torch.float32).save_pretrained(without_tokenizer)
    with pytest.raises(ValueError, match="has no tokenizer"):
        convert(without_tokenizer, tmp_path / "out")

    damaged = shutil.copytree(checkpoint, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes()[:999])
    with pytest.raises(ValueError, match="damaged"):
        convert(damaged, tmp_path / "out")

    partial = shutil.copytree(checkpoint, tmp_path / "partial")
    fewer = dense_model("Roberta", "ForMaskedLM", torch.float32, vocab_size=261, num_hidden_layers=1)
    fewer.save_pretrained(partial)
    shutil.copy(checkpoint / "config.json", partial)
    with pytest.raises(ValueError, match="lack 16 tensors, the first of them"):
        convert(partial, tmp_path / "out")

    with pytest.raises(ValueError, match="--head is 'tagger'"):
        convert(checkpoint, tmp_path / "out", head="tagger")
    with pytest.raises(ValueError, match="between 1 and"):
        convert(checkpoint, tmp_path / "out", projected_length=[99])
    assert not (tmp_path / "out").exists()

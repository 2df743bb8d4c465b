"""ONNX: the exported file computes what torch does, for every head and projection, and runs without torch."""

import itertools
import json
import logging
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, enliven, random_ids, tiny_config
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

import linformer_hf
from linformer_hf import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
)


for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install linformer_hf[onnx]")

import onnxruntime  # noqa: E402

from linformer_hf.sharing import onnx_agreement  # noqa: E402
from linformer_hf.sharing.onnx_agreement import largest_difference, open_session, read_sample  # noqa: E402
from linformer_hf.sharing.onnx_export import ExportArguments, export_checkpoint, export_onnx, load_linformer  # noqa: E402


LONGEST = 32
WORDS = ["boat", "river", "bridge", "the", "is", "on", "Two", "bridges", "cross", "it", ".", "closed"]

# Each head, each type, each sharing of learned weights; `linear` and `layerwise` is the checkpoint below.
CASES = [
    (LinformerForMaskedLM, "linear", "key_value", {}),
    (LinformerModel, "conv", "none", {}),
    (LinformerForSequenceClassification, "conv", "layerwise", {"classifier_pooling": "cls", "num_labels": 1}),
    (LinformerForTokenClassification, "linear", "none", {"type_vocab_size": 3}),
    (LinformerForTokenClassification, "max_pool", "none", {"num_hidden_layers": 2, "projected_length": [8, 4]}),
    (LinformerForQuestionAnswering, "mean_pool", "none", {}),
    (LinformerForMultipleChoice, "linear", "headwise", {"classifier_pooling": "mean"}),
]
OUTPUTS = {LinformerModel: ["last_hidden_state"], LinformerForQuestionAnswering: ["start_logits", "end_logits"]}


def words_tokenizer(**options):
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *WORDS]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        **{"model_input_names": ["input_ids", "attention_mask"], **options},
    )


def small_model(model_class, **fields):
    return enliven(model_class(tiny_config(**{"num_hidden_layers": 1, **fields}))).float().eval()


def case_name(case):
    return "-".join((case[0].__name__, *case[1:3]))


@pytest.fixture(scope="module", params=CASES, ids=case_name)
def exported(request, tmp_path_factory):
    """A model of each kind, its inputs, and the folder that it was exported to. Nothing else may have changed."""
    model_class, projection_type, projection_sharing, fields = request.param
    model = small_model(model_class, projection_type=projection_type, projection_sharing=projection_sharing, **fields)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if "type_vocab_size" in fields else [])]
    tokenizer, folder = words_tokenizer(model_input_names=names), tmp_path_factory.mktemp("exported") / "onnx"
    before = tokenizer.backend_tokenizer.to_str(), model.config.to_dict()
    export_onnx(model.train(), tokenizer, folder)
    assert (tokenizer.backend_tokenizer.to_str(), model.config.to_dict()) == before
    assert model.training
    return model.eval(), names, folder


def inputs_of(model, names, batch_size, num_tokens, padded):
    choices = (4,) if isinstance(model, LinformerForMultipleChoice) else ()
    ids = random_ids(batch_size, *choices, num_tokens, seed=num_tokens)
    mask = torch.ones_like(ids)
    mask[0, ..., padded] = 0
    return {name: {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 3}[name] for name in names}


def test_onnxruntime_computes_what_torch_does(exported):
    model, names, folder = exported
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    assert [given.name for given in session.get_inputs()] == names
    outputs = OUTPUTS.get(type(model), ["logits"])
    assert [output.name for output in session.get_outputs()] == outputs
    paddings = {"nowhere": [], "left": [0, 1], "right": [-1, -2], "middle": [3, 4, 5, 6], "everywhere": slice(None)}
    for batch_size, num_tokens, (side, padded) in itertools.product((1, 3), (1, 9, LONGEST), paddings.items()):
        if num_tokens == 1 and side in ("left", "right", "middle"):
            continue
        inputs = inputs_of(model, names, batch_size, num_tokens, padded)
        with torch.no_grad():
            expected = model(**inputs)
        found = session.run(outputs, {name: tensor.numpy() for name, tensor in inputs.items()})
        for name, values in zip(outputs, found):
            where = f"{name}, {batch_size} x {num_tokens}, padded {side}"
            assert_same_answers(values, expected[name].numpy(), inputs["attention_mask"].numpy(), where)


def assert_same_answers(values, expected, mask, where=""):
    """Compare answers; of padding itself, and of a text of nothing else, neither says anything of use."""
    seen = mask == 1 if expected.ndim == 3 else mask.any(-1)
    np.testing.assert_allclose(values[seen], expected[seen], rtol=0, atol=1e-4, err_msg=where)


@pytest.mark.parametrize("num_tokens", [LONGEST + 1, LONGEST + 8])
def test_an_input_longer_than_n_is_refused(exported, num_tokens):
    model, names, folder = exported
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    inputs = inputs_of(model, names, 2, num_tokens, [])
    with pytest.raises(Exception, match="Mul node"):
        session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})


def test_the_five_lines_of_the_readme_run_without_torch(exported):
    model, names, folder = exported
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]
    assert len(code.splitlines()) == 5
    blocked = "import sys\nfor name in ('torch', 'transformers', 'linformer_hf'):\n    sys.modules[name] = None\n"
    shown = "import json\nprint(json.dumps([[text.ids for text in texts], [output.tolist() for output in outputs]]))"
    done = subprocess.run([sys.executable, "-c", blocked + code + shown], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ids, outputs = json.loads(done.stdout)
    ids = torch.tensor([ids] if isinstance(model, LinformerForMultipleChoice) else ids)
    inputs = {"input_ids": ids, "attention_mask": (ids != 1).long()}
    if "token_type_ids" in names:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    with torch.no_grad():
        expected = model(**inputs)
    for name, values in zip(OUTPUTS.get(type(model), ["logits"]), outputs):
        assert_same_answers(np.array(values), expected[name].numpy(), inputs["attention_mask"].numpy())
    assert (4 in ids) == isinstance(model, LinformerForMaskedLM)


def test_the_folder_holds_configuration_and_tokenizer(exported):
    model, _, folder = exported
    names = {file.name for file in folder.iterdir()}
    assert names == {"README.md", "config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"}
    config = linformer_hf.LinformerConfig.from_pretrained(folder)
    assert config.architectures == [type(model).__name__]
    assert config.projection_type == model.config.projection_type
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    long, short = tokenizer.encode_batch(["boat " * 99, "boat"])
    assert len(long.ids) == len(short.ids) == LONGEST
    assert long.attention_mask == [1] * LONGEST and short.attention_mask == [1] * 3 + [0] * (LONGEST - 3)
    assert set(short.ids[3:]) == {1}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "tiny"
    small_model(LinformerForMaskedLM).save_pretrained(folder)
    words_tokenizer().save_pretrained(folder)
    return folder


def arguments_of(checkpoint, folder, **options):
    return ExportArguments(model_name_or_path=str(checkpoint), output_dir=str(folder), **options)


@pytest.fixture(scope="module")
def quantized(checkpoint, tmp_path_factory):
    """What a quantized export of a checkpoint left, and what it said on the way."""
    folder = tmp_path_factory.mktemp("quantized") / "onnx"
    sample = folder.parent / "sample.txt"
    sample.write_text("\n".join(f"the {word} is on the river . Two bridges cross the boat ." for word in WORDS))
    handlers = list(logging.getLogger().handlers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        numbers = export_checkpoint(arguments_of(checkpoint, folder, quantize=True, sample_file=str(sample)))
    assert logging.getLogger().handlers == handlers
    assert [str(warning.message) for warning in caught] == []
    return folder, sample, numbers


def test_the_record_holds_the_numbers(quantized, checkpoint):
    folder, _, numbers = quantized
    record = json.loads((folder / "results.json").read_text())
    assert numbers.items() <= record["numbers"].items()
    assert record["about"]["head"] == "LinformerForMaskedLM"
    assert numbers["max_difference"] < 1e-4
    assert numbers["onnx_bytes"] == (folder / "model.onnx").stat().st_size
    assert numbers["int8_bytes"] == (folder / "model_quantized.onnx").stat().st_size
    assert numbers["torch_bytes"] == 4 * LinformerForMaskedLM.from_pretrained(checkpoint).num_parameters()


def test_speedups_are_medians_over_rounds(checkpoint, monkeypatch):
    seconds = {"torch": [3.0, 9.0, 4.0], "onnx": [1.0, 2.0, 4.0]}
    monkeypatch.setattr(onnx_agreement, "seconds_in_turns", lambda *_: seconds)
    monkeypatch.setattr(onnx_agreement, "run_session", lambda *_: {})
    numbers = onnx_agreement.measure_seconds(
        LinformerForMaskedLM.from_pretrained(checkpoint), {"onnx": None}, ["input_ids", "attention_mask"]
    )
    assert numbers == {"torch_seconds": 4.0, "onnx_seconds": 2.0, "onnx_speedup": 3.0}


def test_what_8_bit_weights_change_is_measured_where_words_are_masked(quantized, checkpoint):
    """Against a loop over the lines that hides tokens 2, 9, ... by hand."""
    folder, sample, numbers = quantized
    model = LinformerForMaskedLM.from_pretrained(checkpoint)
    session = onnxruntime.InferenceSession(folder / "model_quantized.onnx")
    tokenizer = words_tokenizer()
    differences, same, right, int8_right = [], [], [], []
    for line in sample.read_text().splitlines():
        ids = tokenizer(line)["input_ids"]
        hidden = range(2, len(ids) - 1, 7)
        masked = [[4 if place in hidden else token for place, token in enumerate(ids)]]
        ones = [[1] * len(ids)]
        with torch.no_grad():
            expected = model(torch.tensor(masked), torch.tensor(ones)).logits[0].numpy()
        found = session.run(None, {"input_ids": masked, "attention_mask": ones})[0][0]
        differences.append(np.abs(found.astype(np.float64) - expected).ravel())
        for place in hidden:
            same.append(found[place].argmax() == expected[place].argmax())
            right.append(expected[place].argmax() == ids[place])
            int8_right.append(found[place].argmax() == ids[place])
    differences = np.concatenate(differences)
    assert numbers["int8_max_difference"] == pytest.approx(differences.max(), rel=1e-3)
    assert numbers["int8_mean_difference"] == pytest.approx(differences.mean(), rel=1e-3)
    assert numbers["int8_mean_difference"] > 1e-4  # 8-bit weights are rounded
    assert numbers["int8_agreement"] == pytest.approx(np.mean(same)) and len(same) == 2 * len(WORDS)
    assert numbers["accuracy"] == pytest.approx(np.mean(right))
    assert numbers["int8_accuracy"] == pytest.approx(np.mean(int8_right))


def test_a_file_of_another_model_is_not_passed(quantized):
    folder, _, _ = quantized
    other = small_model(LinformerForMaskedLM)
    other.lm_head.decoder.bias.data += 1e-3
    with pytest.raises(RuntimeError, match="differ in `logits` by 1.0e-03"):
        largest_difference(other, open_session(folder / "model.onnx"), ["input_ids", "attention_mask"])


def roberta():
    return RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
        )
    )


def attending_by(implementation):
    model = small_model(LinformerModel)
    model.set_attn_implementation(implementation)
    return model


def slow_tokenizer():
    tokenizer = words_tokenizer()
    tokenizer.__class__ = type("SlowTokenizer", (PreTrainedTokenizerFast,), {"is_fast": False})
    return tokenizer


@pytest.mark.parametrize(
    ("model", "tokenizer", "message"),
    [
        (roberta, words_tokenizer, "RobertaForMaskedLM; only the Linformers"),
        (lambda: attending_by("flex_attention"), words_tokenizer, "'flex_attention'.*sdpa"),
        (lambda: small_model(LinformerModel).bfloat16(), words_tokenizer, "bfloat16.*float()"),
        (lambda: small_model(LinformerModel), slow_tokenizer, "SlowTokenizer, has no tokenizer.json"),
        (lambda: small_model(LinformerModel, vocab_size=16), words_tokenizer, "17 tokens.* only 16 rows"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_anything_is_written(model, tokenizer, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_onnx(model(), tokenizer(), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_a_folder_in_use_is_left_alone(checkpoint):
    before = {file.name: file.stat().st_mtime_ns for file in checkpoint.iterdir()}
    with pytest.raises(ValueError, match="is not empty; name a new"):
        export_checkpoint(arguments_of(checkpoint, checkpoint))
    assert {file.name: file.stat().st_mtime_ns for file in checkpoint.iterdir()} == before


def test_a_sample_without_quantizing_is_refused(checkpoint, tmp_path):
    with pytest.raises(ValueError, match="--sample_file is only read with --quantize"):
        export_checkpoint(arguments_of(checkpoint, tmp_path / "onnx", sample_file="a.txt"))


def test_revision_and_token_reach_the_hub(tmp_path, monkeypatch):
    asked = []

    def ask(name, **options):
        asked.append(options)
        raise OSError("not here")

    monkeypatch.setattr("linformer_hf.common.loading.AutoConfig.from_pretrained", ask)
    with pytest.raises(ValueError, match="owner/tiny is no folder, and not to be had from the Hub: not here"):
        export_checkpoint(arguments_of("owner/tiny", tmp_path / "onnx", model_revision="v1", token="hf_mine"))
    assert asked == [{"revision": "v1", "trust_remote_code": False, "token": "hf_mine"}]


def test_a_checkpoint_of_something_else_is_refused(tmp_path, checkpoint):
    with pytest.raises(ValueError, match="config.json: there is no such file"):
        load_linformer(str(tmp_path))
    roberta().save_pretrained(tmp_path / "roberta")
    with pytest.raises(ValueError, match="holds a roberta, not a Linformer"):
        load_linformer(str(tmp_path / "roberta"))
    config = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": None}))
    with pytest.raises(ValueError, match="`architectures` .* names no head"):
        load_linformer(str(tmp_path))


def test_a_sample_is_short_and_must_hold_text(tmp_path):
    assert 32 <= len(read_sample(None)) <= 64
    (tmp_path / "long.txt").write_text("\n\n".join(f"line {number}" for number in range(1000)))
    lines = read_sample(str(tmp_path / "long.txt"))
    assert len(lines) <= 64 and lines[0] == "line 0" and int(lines[-1].split()[1]) > 900
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="empty.txt: the file holds no text"):
        read_sample(str(tmp_path / "empty.txt"))
    with pytest.raises(ValueError, match="missing.txt: there is no such file"):
        read_sample(str(tmp_path / "missing.txt"))

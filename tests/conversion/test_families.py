"""Encoders that a Linformer cannot take over are refused with the reason."""

import pytest
import torch
import transformers
from conftest import tiny_model
from dense_models import dense_config, dense_model

from linformer_hf.conversion.checkpoint_conversion import convert_pretrained
from linformer_hf.conversion.convert import convert_model


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
        convert_pretrained(str(tmp_path / "dense"), tmp_path / "out")
    assert not (tmp_path / "out").exists()

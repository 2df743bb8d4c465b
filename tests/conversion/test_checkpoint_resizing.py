"""A saved Linformer gets another n and k in a new folder, or nothing is written."""

import json
import logging
import shutil

import pytest
import torch
from conftest import SHARINGS, assert_close, random_ids, tiny_model
from dense_models import dense_model
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

import linformer_hf
from linformer_hf.conversion.checkpoint_resizing import (
    ResizingArguments,
    dense_parent,
    resize_checkpoint,
    resize_model,
)
from linformer_hf.conversion.projections import start_projections
from linformer_hf.data.tokenizers import train_tokenizer
from linformer_hf.sharing.hub import save_for_hub


TOKENIZER = train_tokenizer([f"The cat sees {number} boats." for number in range(30)], 261, 32)


@pytest.fixture(params=["none", "headwise", "key_value", "layerwise"])
def saved(request, tmp_path):
    """A Linformer of 32 tokens and 8 slots with a head for words, in a folder."""
    head = linformer_hf.LinformerForMaskedLM
    model = tiny_model(head, torch.float32, projection_sharing=request.param, vocab_size=261)
    save_for_hub(model, TOKENIZER, tmp_path / "saved")
    return tmp_path / "saved"


def resize(folder, output, **options):
    return resize_checkpoint(ResizingArguments(model_name_or_path=str(folder), output_dir=str(output), **options))


def test_a_longer_model_with_more_slots_reads_shorter_texts_as_before(saved, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        resize(saved, tmp_path / "long", max_seq_length=80, projected_length=[20])
    before, after = (AutoModelForMaskedLM.from_pretrained(folder) for folder in (saved, tmp_path / "long"))
    assert (after.config.max_position_embeddings, after.config.projected_length) == (80, 20)
    ids = random_ids(2, 80)
    assert_close(after(ids[:, :32]).logits, before(ids[:, :32]).logits)
    assert after(ids).logits.shape == (2, 80, 261)
    changed = ids.clone()
    changed[:, -1] = ids[:, -2]
    assert (after(ids).logits[:, 0] - after(changed).logits[:, 0]).abs().max() > 0, "the new slots read the new tokens"
    assert AutoTokenizer.from_pretrained(tmp_path / "long").model_max_length == 80
    record = json.loads((tmp_path / "long" / "results.json").read_text())
    assert record["about"]["model"]["max_position_embeddings"] == 80
    assert record["about"]["pipeline_tag"] == "fill-mask"
    assert "slot that reads" not in caplog.text
    assert "n = 80, k = 20" in caplog.text and "linformer distill" in caplog.text
    again = resize(tmp_path / "long", tmp_path / "short", max_seq_length=32)
    assert again.config.max_position_embeddings == 32


def test_n_and_k_become_smaller_together(saved, tmp_path):
    model = resize(saved, tmp_path / "small", max_seq_length=6, projected_length=[4])
    assert (model.config.max_position_embeddings, model.config.projected_length) == (6, 4)
    assert model(random_ids(1, 6)).logits.shape == (1, 6, 261)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_a_smaller_n_gives_up_the_slots_of_the_tokens_that_are_cut_off(sharing, tmp_path):
    head = linformer_hf.LinformerForMaskedLM
    model = tiny_model(head, torch.float32, projection_sharing=sharing, projected_length=16, vocab_size=261)
    start_projections(model, "graded")  # 8 tokens alone, then windows of 3
    save_for_hub(model, TOKENIZER, tmp_path / "saved")
    smaller = resize(tmp_path / "saved", tmp_path / "small", max_seq_length=17, projected_length=[11])
    for name, weight in smaller.named_parameters():
        if "projection" in name:
            assert_close(weight, model.get_parameter(name)[..., :11, :17])
    ids = random_ids(2, 17)
    assert_close(smaller(ids).logits, model(ids).logits)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_a_smaller_n_with_more_slots_leaves_none_empty(sharing, tmp_path):
    head = linformer_hf.LinformerForMaskedLM
    model = tiny_model(head, torch.float32, projection_sharing=sharing, vocab_size=261)
    start_projections(model, "window")
    save_for_hub(model, TOKENIZER, tmp_path / "saved")
    smaller = resize(tmp_path / "saved", tmp_path / "small", max_seq_length=16, projected_length=[12])
    for name, weight in smaller.named_parameters():
        if "projection" in name:
            assert weight.shape[-2:] == (12, 16) and weight.any(-1).all()
    if sharing == "key_value":
        mixed = resize(tmp_path / "saved", tmp_path / "mixed", max_seq_length=16, projected_length=[12, 3])
        assert [layer.attention.projection.weight.any(-1).all() for layer in mixed.base_model.layers] == [True, True]
        assert mixed.config.projected_lengths == [12, 3]


def test_tokens_that_were_unread_before_are_not_warned_of(tmp_path, caplog):
    model = tiny_model(linformer_hf.LinformerModel, projection_sharing="headwise")
    attention = model.layers[0].attention
    attention.key_projection.weight.data[:, 5] = attention.value_projection.weight.data[:, 5] = 0
    resize_model(model, 34, [10])
    assert "slot that reads" not in caplog.text
    attention.key_projection.weight.data[:, 33] = 0  # keys alone
    resize_model(model, 35, [11])
    assert "slot that reads" not in caplog.text
    resize_model(model, 36, None)
    assert "slot that reads the tokens after the first 35" in caplog.text
    conv = tiny_model(linformer_hf.LinformerModel, projection_type="conv")
    conv.projection.weight.data.zero_()
    caplog.clear()
    resize_model(conv, 64, None)
    assert caplog.text == ""


@pytest.mark.parametrize("lengths", [None, [8], [4], [16, 8]])
def test_new_tokens_without_new_slots_are_warned_of(lengths, tmp_path, caplog):
    head = linformer_hf.LinformerForMaskedLM
    save_for_hub(
        tiny_model(head, torch.float32, projection_sharing="key_value", vocab_size=261), TOKENIZER, tmp_path / "a"
    )
    model = resize(tmp_path / "a", tmp_path / "long", max_seq_length=64, projected_length=lengths)
    assert "slot that reads the tokens after the first 32" in caplog.text and "--projected_length" in caplog.text
    if lengths is None:
        ids = random_ids(1, 64)
        changed = torch.cat([ids[:, :32], ids[:, :32]], 1)
        assert_close(model(changed).logits[:, :32], model(ids).logits[:, :32])


def test_windows_stay_and_their_number_grows_with_n(tmp_path, caplog):
    model = tiny_model(linformer_hf.LinformerForMaskedLM, torch.float32, projection_type="mean_pool", vocab_size=261)
    save_for_hub(model, TOKENIZER, tmp_path / "saved")
    longer = resize(tmp_path / "saved", tmp_path / "long", max_seq_length=64)
    assert longer.config.projected_length == 16
    shorter = resize(tmp_path / "saved", tmp_path / "short", max_seq_length=16, projected_length=[8])
    assert (shorter.config.max_position_embeddings, shorter.config.projected_length) == (16, 8)
    assert "slot that reads" not in caplog.text


@pytest.mark.parametrize(
    ("given", "is_converted", "parent"),
    [
        (None, False, "DENSE_ENCODER"),
        ({}, True, "DENSE_ENCODER"),
        ({"model_name_or_path": "a/bert"}, True, "a/bert"),
        ({"model_name_or_path": "a/linformer"}, False, "DENSE_ENCODER"),
        ({"model_name_or_path": "a/linformer", "teacher_name_or_path": "a/bert"}, False, "a/bert"),
    ],
)
def test_the_dense_parent_is_read_off_the_record(given, is_converted, parent, tmp_path):
    (tmp_path / "README.md").write_text("---\nbase_model: a/grandparent\n---\n# A model\n")
    if given is not None:
        (tmp_path / "results.json").write_text(json.dumps({"arguments": given, "numbers": {}}))
    if is_converted:
        (tmp_path / "conversion.json").write_text("{}")
    assert dense_parent(tmp_path) == parent
    assert dense_parent(None) == "DENSE_ENCODER"


def test_slots_alone_change_and_other_heads_stay(tmp_path, caplog):
    head = linformer_hf.LinformerForSequenceClassification
    model = tiny_model(head, torch.float32, projection_sharing="key_value", vocab_size=261, num_labels=3)
    save_for_hub(model, TOKENIZER, tmp_path / "saved")
    with caplog.at_level(logging.INFO):
        resize(tmp_path / "saved", tmp_path / "out", projected_length=[16, 4])
    assert "n = 32, k = [16, 4]" in caplog.text
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert again.config.projected_lengths == [16, 4] and again.config.num_labels == 3
    assert_close(again.classifier.dense.weight, model.classifier.dense.weight)
    assert "linformer distill" not in caplog.text


def test_what_will_not_do_is_refused_and_nothing_is_written(tmp_path):
    model = tiny_model(linformer_hf.LinformerForMaskedLM, torch.float32, vocab_size=261)
    save_for_hub(model, TOKENIZER, tmp_path / "saved")
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="Nothing is to be changed"):
        resize(tmp_path / "saved", out)
    with pytest.raises(ValueError, match=r"`projected_length` is 99; each must be between 1 and .* = 64"):
        resize(tmp_path / "saved", out, max_seq_length=64, projected_length=[99])
    with pytest.raises(ValueError, match="saved is not empty"):
        resize(tmp_path / "saved", tmp_path / "saved", max_seq_length=64)
    headless = shutil.copytree(tmp_path / "saved", tmp_path / "headless")
    config = json.loads((headless / "config.json").read_text())
    (headless / "config.json").write_text(json.dumps({**config, "architectures": None}))
    with pytest.raises(ValueError, match=r"headless holds lm_head\..*, which LinformerModel lacks; name the class"):
        resize(headless, out, max_seq_length=64)
    dense_model("Roberta", "ForMaskedLM").save_pretrained(tmp_path / "dense")
    with pytest.raises(ValueError, match="is a roberta, not a Linformer"):
        resize(tmp_path / "dense", out, max_seq_length=64)
    assert not out.exists()

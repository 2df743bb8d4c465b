"""Weights that nobody trained are refused: damaged files, missing tensors, other shapes, NaN."""

import pytest
import torch
from conftest import assert_same_tensors
from dense_twins import make_dense, make_tokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, BertForMaskedLM, BertModel

from linformer_hf.common.loading import load_whole


TOKENIZER = make_tokenizer()


@pytest.fixture
def folder(tmp_path):
    make_dense(BertForMaskedLM, TOKENIZER).save_pretrained(tmp_path)
    return tmp_path


def change(folder, edit):
    """Change the tensors of a saved model."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_whole_model_is_loaded_with_its_weights(folder):
    model, loading = load_whole(AutoModelForMaskedLM, str(folder))
    assert_same_tensors(model.state_dict(), make_dense(BertForMaskedLM, TOKENIZER).state_dict())
    assert not loading["missing_keys"]


def test_a_pooler_that_nothing_uses_may_be_missing(folder):
    model, loading = load_whole(AutoModel, str(folder))
    assert isinstance(model, BertModel)
    assert loading["missing_keys"] == {"pooler.dense.weight", "pooler.dense.bias"}


@pytest.mark.parametrize("name", ["bert.encoder.layer.0.output.dense.weight", "cls.predictions.transform.dense.bias"])
def test_a_missing_tensor_is_named(folder, name):
    change(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(ValueError, match=f"lack 1 tensors.*{name}"):
        load_whole(AutoModelForMaskedLM, str(folder))


def test_a_new_head_may_be_asked_for_and_a_new_encoder_not(tmp_path):
    make_dense(BertModel, TOKENIZER).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="lack .* tensors"):
        load_whole(AutoModelForMaskedLM, str(tmp_path))
    _, loading = load_whole(AutoModelForMaskedLM, str(tmp_path), may_lack_head=True)
    assert "cls.predictions.transform.dense.weight" in loading["missing_keys"]
    change(tmp_path, lambda tensors: tensors.pop("encoder.layer.0.output.dense.weight"))
    with pytest.raises(ValueError, match=r"lack 1 tensors.*encoder\.layer\.0\.output\.dense\.weight"):
        load_whole(AutoModelForMaskedLM, str(tmp_path), may_lack_head=True)


def test_a_tensor_of_another_shape_is_refused(folder):
    name = "bert.encoder.layer.0.output.dense.weight"
    change(folder, lambda tensors: tensors.update({name: torch.zeros(3, 3)}))
    with pytest.raises(ValueError, match="do not have the shapes that its config.json says"):
        load_whole(AutoModelForMaskedLM, str(folder))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_tensor_that_holds_no_number_is_named(folder, number):
    name = "bert.encoder.layer.1.output.dense.bias"
    change(folder, lambda tensors: tensors[name].fill_(number))
    with pytest.raises(ValueError, match=f"are damaged: {name} holds NaN or infinity"):
        load_whole(AutoModelForMaskedLM, str(folder))


def test_a_file_that_was_cut_off_is_refused(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(ValueError, match="are damaged"):
        load_whole(AutoModelForMaskedLM, str(folder))


def test_a_pickle_that_was_cut_off_is_refused(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    load_whole(AutoModelForMaskedLM, str(folder), may_lack_head=True)
    whole = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(whole[:-2000])
    with pytest.raises(ValueError, match="are damaged"):
        load_whole(AutoModelForMaskedLM, str(folder))

"""Which layers share a projection, in memory and on disk, and that saved models load unchanged."""

import copy
import hashlib
import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import (
    KINDS,
    LEARNED_KINDS,
    enliven,
    for_kinds,
    random_ids,
    random_like,
    tiny_config,
    tiny_model,
)
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from linformer_hf import (
    LinformerConfig,
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
)


AUTO_CLASSES = {
    AutoModel: LinformerModel,
    AutoModelForPreTraining: LinformerForMaskedLM,
    AutoModelForMaskedLM: LinformerForMaskedLM,
    AutoModelForSequenceClassification: LinformerForSequenceClassification,
    AutoModelForTokenClassification: LinformerForTokenClassification,
    AutoModelForQuestionAnswering: LinformerForQuestionAnswering,
    AutoModelForMultipleChoice: LinformerForMultipleChoice,
}
MODEL_CLASSES = list(dict.fromkeys(AUTO_CLASSES.values()))


def projections(model):
    """The weights of a model's projections by name."""
    return {name: weight for name, weight in model.named_parameters() if "projection" in name}


def tensors_on_disk(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (a file is no dictionary)


@pytest.mark.parametrize(
    ("projection_sharing", "matrices", "weights"),
    [("none", 288, 18_874_368), ("headwise", 24, 1_572_864), ("key_value", 12, 786_432), ("layerwise", 1, 65_536)],
)
def test_projections_are_counted_as_in_the_paper(projection_sharing, matrices, weights):
    with torch.device("meta"):
        model = LinformerForMaskedLM(LinformerConfig(projection_sharing=projection_sharing))
    assert sum(weight.numel() for weight in projections(model).values()) == weights
    assert sum(weight.shape[:-2].numel() for weight in projections(model).values()) == matrices
    assert {weight.shape[-2:] for weight in projections(model).values()} == {(128, 512)}


@pytest.mark.parametrize(
    ("projection_sharing", "kernels"), [("none", 4), ("headwise", 4), ("key_value", 2), ("layerwise", 1)]
)
def test_convolutions_are_counted_as_matrices_are(projection_sharing, kernels):
    model = tiny_model(projection_type="conv", projection_sharing=projection_sharing)
    assert [tuple(weight.shape) for weight in projections(model).values()] == [(16, 4)] * kernels


@pytest.mark.parametrize("projection_type", ["mean_pool", "max_pool"])
def test_pooling_has_no_projection_weights(projection_type):
    assert not projections(tiny_model(projection_type=projection_type))


def test_layers_with_a_smaller_k_use_the_first_rows_of_the_shared_matrix():
    model = tiny_model(projected_length=[8, 3])
    assert [tuple(weight.shape) for weight in projections(model).values()] == [(8, 32)]
    ids = random_ids(2, 19)
    before = model(ids, output_hidden_states=True).hidden_states
    model.projection.weight.data[3:] += 1
    after = model(ids, output_hidden_states=True).hidden_states
    assert not torch.allclose(before[1], after[1])
    # the second layer, given the same input, is the same
    fixed = random_like(before[0])
    outputs = []
    for change in (0, 1):
        model.projection.weight.data[3:] += change
        outputs.append(output_of_last_layer(model, ids, fixed))
    assert torch.equal(*outputs)


def output_of_last_layer(model, ids, layer_input):
    """Run the model with a fixed input for the last layer, so that the output depends on that layer's weights only."""
    hook = model.layers[-1].register_forward_pre_hook(lambda module, inputs: (layer_input, *inputs[1:]))
    with torch.no_grad():
        output = model(ids).last_hidden_state
    hook.remove()
    return output


def reaches_last_layer(model):
    """Edit the projections that layer 0 sees, and tell whether layer 11 computes differently on the same input."""
    ids = random_ids(2, 19)
    layer_input = random_like(model(ids).last_hidden_state)
    first_before = model(ids, output_hidden_states=True).hidden_states[1]
    before = output_of_last_layer(model, ids, layer_input)
    seen_by_first = [
        weight for name, weight in projections(model).items() if "layers." not in name or "layers.0." in name
    ]
    for weight in seen_by_first:
        weight.data += 1 + random_like(weight)
    first_after = model(ids, output_hidden_states=True).hidden_states[1]
    assert not torch.allclose(first_before, first_after)
    return not torch.equal(before, output_of_last_layer(model, ids, layer_input))


@for_kinds(LEARNED_KINDS)
def test_the_projection_of_the_first_layer_reaches_the_last_only_under_layerwise_sharing(
    projection_type, projection_sharing
):
    model = tiny_model(projection_type=projection_type, projection_sharing=projection_sharing, num_hidden_layers=12)
    assert reaches_last_layer(model) == (projection_sharing == "layerwise")


def test_two_models_in_one_process_share_nothing():
    config = tiny_config()
    models = [enliven(LinformerForMaskedLM(config)).eval() for _ in range(2)]
    first, second = ({weight.data_ptr() for weight in model.parameters()} for model in models)
    assert not first & second
    ids, mask = random_ids(2, 19), (torch.arange(19) < torch.tensor([[19], [7]])).long()
    before = models[1](ids, mask).logits
    for weight in models[0].parameters():
        weight.data.zero_()
    models[0].resize_position_embeddings(48)
    assert torch.equal(models[1](ids, mask).logits, before)


def test_a_deep_copy_is_independent_and_its_layers_share_their_matrix():
    model = tiny_model(LinformerForMaskedLM, num_hidden_layers=12)
    twin = copy.deepcopy(model)
    pointers = [{weight.data_ptr() for weight in each.parameters()} for each in (model, twin)]
    assert not pointers[0] & pointers[1]
    assert twin.lm_head.decoder.weight is twin.linformer.embeddings.word_embeddings.weight
    ids = random_ids(2, 19)
    before = model(ids).logits
    assert torch.equal(twin(ids).logits, before)
    assert reaches_last_layer(twin.linformer)
    assert torch.equal(model(ids).logits, before)


@for_kinds(LEARNED_KINDS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_file_holds_each_projection_once(projection_type, projection_sharing, tied, tmp_path):
    model = tiny_model(
        LinformerForMaskedLM,
        projection_type=projection_type,
        projection_sharing=projection_sharing,
        num_hidden_layers=3,
        tie_word_embeddings=tied,
    )
    model.save_pretrained(tmp_path)
    saved = tensors_on_disk(tmp_path)
    expected = {"none": 6, "headwise": 6, "key_value": 3, "layerwise": 1}[projection_sharing]
    assert len([name for name in saved if "projection" in name]) == expected
    assert ("lm_head.decoder.weight" in saved) == (not tied)
    loaded, report = LinformerForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert (loaded.lm_head.decoder.weight is loaded.linformer.embeddings.word_embeddings.weight) == tied
    assert len(projections(loaded)) == expected
    for name, weight in loaded.named_parameters():
        assert torch.equal(weight, model.get_parameter(name)), name


def fingerprint(model):
    """A digest of each tensor's bytes."""
    state = model.state_dict()
    return {name: hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest() for name, tensor in state.items()}


IN_A_FRESH_PROCESS = """
import hashlib, json, sys
from transformers import AutoModel, AutoModelForMaskedLM

def digest(model):
    state = model.state_dict()
    return {name: hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest() for name, tensor in state.items()}

remote = AutoModelForMaskedLM.from_pretrained(sys.argv[1], trust_remote_code=True)
assert "linformer_hf" not in sys.modules
remote.save_pretrained(sys.argv[1] + "-again")

import linformer_hf

found = {}
for folder in sys.argv[1:]:
    model = AutoModelForMaskedLM.from_pretrained(folder)
    assert type(model) is linformer_hf.LinformerForMaskedLM
    found[folder] = digest(model)
print(json.dumps({"remote": digest(remote), **found}))
"""


def test_a_saved_model_loads_bit_for_bit_in_a_fresh_process(tmp_path):
    kinds = [kind for kind in KINDS if kind[1] in ("none", "layerwise")]
    models = {
        str(tmp_path / "-".join(kind)): tiny_model(
            LinformerForMaskedLM, torch.float32, projection_type=kind[0], projection_sharing=kind[1]
        )
        for kind in kinds
    }
    for folder, model in models.items():
        model.save_pretrained(folder)
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS, *models]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    first = next(iter(models))
    assert found.pop("remote") == fingerprint(models[first])
    assert found == {folder: fingerprint(model) for folder, model in models.items()}
    again = AutoModelForMaskedLM.from_pretrained(first + "-again")
    assert type(again) is LinformerForMaskedLM
    assert fingerprint(again) == fingerprint(models[first])


@pytest.mark.parametrize("saved_class", MODEL_CLASSES, ids=lambda model_class: model_class.__name__)
def test_every_head_loads_from_a_checkpoint_of_any_head(saved_class, tmp_path):
    saved = tiny_model(saved_class, torch.float32)
    saved.save_pretrained(tmp_path)
    ids, mask = random_ids(2, 19), (torch.arange(19) < torch.tensor([[19], [7]])).long()
    expected = saved.base_model(ids, mask).last_hidden_state
    for auto_class, model_class in AUTO_CLASSES.items():
        loaded = auto_class.from_pretrained(tmp_path)
        assert type(loaded) is model_class
        assert not loaded.training
        assert torch.equal(loaded.base_model(ids, mask).last_hidden_state, expected), auto_class.__name__
        if model_class is saved_class:
            assert fingerprint(loaded) == fingerprint(saved)
        new = [name for name, weight in loaded.named_parameters() if not torch.isfinite(weight).all()]
        assert not new, f"{auto_class.__name__} left {new} without values"


@pytest.mark.parametrize("ignores", [None, False, True])
def test_damaged_weights_are_refused_unless_their_repair_is_asked_for(ignores, tmp_path):
    model = tiny_model(LinformerForMaskedLM, torch.float32, projection_sharing="key_value")
    model.save_pretrained(tmp_path)
    tensors = tensors_on_disk(tmp_path)
    del tensors["linformer.layers.1.attention.projection.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    given = {} if ignores is None else {"ignore_mismatched_sizes": ignores}
    if ignores:
        assert LinformerForMaskedLM.from_pretrained(tmp_path, **given).config.projection_sharing == "key_value"
    else:
        with pytest.raises(ValueError, match="does not fit its weights.*layers.1.attention.projection.weight"):
            LinformerForMaskedLM.from_pretrained(tmp_path, **given)

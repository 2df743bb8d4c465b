"""FSDP2 with the smallest units: each linear map and each projection is a unit."""

import pytest
import torch
from conftest import assert_same_tensors, for_kinds, gradients, random_ids, tiny_model
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from linformer_hf import LinformerForMaskedLM
from linformer_hf.modeling_linformer import LinformerProjection


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    """One process is enough: weights are sharded before and after each unit's forward as in many."""
    file = tmp_path_factory.mktemp("sharding") / "store"
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@for_kinds([("linear", "layerwise"), ("linear", "key_value"), ("linear", "none"), ("conv", "headwise")])
@pytest.mark.parametrize("length", [5, 19, 32])
def test_units_of_one_linear_map_or_projection_give_the_same_gradients(
    projection_type, projection_sharing, length, mesh
):
    model = tiny_model(
        LinformerForMaskedLM, projection_type=projection_type, projection_sharing=projection_sharing
    ).train()
    ids = random_ids(3, length)
    mask = (torch.arange(length) < torch.tensor([[length], [3], [1]])).long()
    model(ids, mask, labels=ids).loss.backward()
    expected = gradients(model)
    model.zero_grad()
    for module in list(model.modules()):
        # the tied decoder and the word embeddings are one parameter, which belongs to the root
        if isinstance(module, (nn.Linear, LinformerProjection)) and module is not model.lm_head.decoder:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(ids, mask, labels=ids).loss.backward()
    found = {name: weight.grad.full_tensor() for name, weight in model.named_parameters()}
    assert_same_tensors(found, expected, what="gradient of")

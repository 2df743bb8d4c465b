"""MACs by formula against those that torch counts."""

import pytest
from conftest import KINDS, enliven, for_kinds, random_ids, tiny_config
from dense_shapes import BATCH, dense_twin, labels_for, mixed_config, with_attention
from torch.utils.flop_counter import FlopCounterMode
from transformers import RobertaForMaskedLM, RobertaModel

from linformer_hf import LinformerConfig, LinformerForMaskedLM, LinformerModel
from linformer_hf.benchmark.macs import count_macs, crossing_length, dense_macs, predicted_speedup


def counted_macs(call):
    """Count MACs as torch does, in operations, of which each MAC is two."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops() / 2


@for_kinds(KINDS)
@pytest.mark.parametrize("num_tokens", [32, 21, 5])
def test_macs_are_those_that_torch_counts(projection_type, projection_sharing, num_tokens):
    config = with_attention(mixed_config(projection_type, projection_sharing), "eager")
    model = enliven(LinformerModel(config))  # in a matrix without zeros every slot counts
    counted = counted_macs(lambda: model(random_ids(BATCH, num_tokens)))
    assert count_macs(config, num_tokens, BATCH) == counted


@pytest.mark.parametrize("sparse", [True, False])
def test_macs_of_the_head_are_those_of_the_tokens_that_it_scores(sparse):
    model = LinformerForMaskedLM(with_attention(tiny_config(sparse_prediction=sparse), "eager"))
    input_ids = random_ids(BATCH, 32)
    counted = counted_macs(lambda: model(input_ids, labels=labels_for(input_ids)))
    scored = BATCH * 3 if sparse else BATCH * 32
    assert count_macs(model.config, batch_size=BATCH, num_predictions=scored) == counted


def test_macs_of_the_dense_twin_are_those_that_torch_counts():
    input_ids = random_ids(BATCH, 21)
    encoder, model = dense_twin(RobertaModel, add_pooling_layer=False), dense_twin(RobertaForMaskedLM)
    assert dense_macs(tiny_config(), 21, BATCH) == counted_macs(lambda: encoder(input_ids))
    assert dense_macs(tiny_config(), 21, BATCH, BATCH * 21) == counted_macs(lambda: model(input_ids))


@pytest.mark.parametrize("projection_sharing", ["headwise", "key_value", "layerwise"])
def test_a_training_step_takes_three_times_the_macs_of_a_forward_pass(projection_sharing):
    model = LinformerModel(with_attention(tiny_config(projection_sharing=projection_sharing), "eager"))
    counted = counted_macs(lambda: model(random_ids(BATCH, 32)).last_hidden_state.sum().backward())
    assert 3 * count_macs(model.config, batch_size=BATCH) == counted


@pytest.mark.parametrize(("num_tokens", "ratio"), [(512, 1.19), (4096, 2.11), (65536, 17)])
def test_the_predicted_speedup_is_that_of_a_layer_of_roberta_base(num_tokens, ratio):
    config = LinformerConfig(max_position_embeddings=num_tokens, projected_length=128, projection_sharing="headwise")
    assert predicted_speedup(config) == pytest.approx(ratio, rel=0.01)


def test_the_predicted_speedup_with_a_head_counts_the_labelled_tokens_alone():
    config = tiny_config(sparse_prediction=True)
    width, words, num_tokens = config.hidden_size, config.vocab_size, 20
    ours = count_macs(config, num_tokens) + 3 * width * (width + words)
    dense = dense_macs(config, num_tokens) + 20 * width * (width + words)
    assert predicted_speedup(config, num_tokens, labelled_share=0.15) == pytest.approx(dense / ours)
    config.sparse_prediction = False
    ours += 17 * width * (width + words)
    assert predicted_speedup(config, num_tokens, labelled_share=0.15) == pytest.approx(dense / ours)


@for_kinds([("linear", "none"), ("linear", "headwise"), ("linear", "layerwise"), ("mean_pool", "key_value")])
def test_the_crossing_is_the_shortest_input_that_takes_fewer_macs(projection_type, projection_sharing):
    config = mixed_config(projection_type, projection_sharing, max_position_embeddings=64)
    cheaper = [count_macs(config, n) <= dense_macs(config, n) for n in range(1, 65)]
    assert crossing_length(config) == 1 + cheaper.index(True)


def test_a_model_that_is_never_cheaper_has_no_crossing():
    assert crossing_length(tiny_config(projected_length=32, projection_sharing="headwise")) is None

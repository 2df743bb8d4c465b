"""The Trainer of a student: the length of each step, learning rates, and what is measured at each length."""

import numpy as np
import pytest
import torch
from conftest import assert_same_tensors, random_ids
from dense_twins import make_dense, make_linformer, make_tokenizer
from transformers import BertModel, TrainingArguments

from linformer_hf.conversion.embeddings import TextEmbedding
from linformer_hf.training.distillation_loss import LossWeights
from linformer_hf.training.distillation_trainer import (
    DistillationTrainer,
    Measurement,
    cut_blocks,
    draw_length,
    length_table,
)


TOKENIZER = make_tokenizer()
DEFAULT_WEIGHTS = LossWeights()


def test_every_step_draws_a_length_and_blocks_keep_their_end():
    lengths = [draw_length(100, seed=3, step=step) for step in range(60)]
    assert set(lengths) == {100, 50, 25}
    assert 20 < lengths.count(100) < 40
    assert lengths == [draw_length(100, seed=3, step=step) for step in range(60)]
    assert lengths != [draw_length(100, seed=4, step=step) for step in range(60)]
    assert draw_length(12, seed=0, step=0) == 12
    blocks = torch.arange(20).view(2, 10)
    assert cut_blocks(blocks, 4).tolist() == [[0, 1, 2, 9], [10, 11, 12, 19]]


def trainer_of(folder, projection_learning_rate=3e-4, weights=DEFAULT_WEIGHTS, **changes):
    """Make the Trainer of a Linformer that learns from a BERT of 32 tokens."""
    teacher = make_dense(BertModel, TOKENIZER)
    training = TrainingArguments(str(folder), learning_rate=3e-3, use_cpu=True, disable_tqdm=True, report_to="none")
    return DistillationTrainer(
        model=make_linformer(teacher),
        args=training,
        teacher=teacher,
        weights=weights,
        projection_learning_rate=projection_learning_rate,
        **{"vary_length": False, **changes},
    )


def test_projections_have_their_own_learning_rate(tmp_path):
    trainer = trainer_of(tmp_path, projection_learning_rate=0.25)
    optimizer = trainer.create_optimizer()
    assert trainer.create_optimizer() is optimizer
    rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(rates)
    found = {name: rates[id(weight)] for name, weight in trainer.model.named_parameters()}
    assert {name for name, rate in found.items() if rate == 0.25} == {"projection.weight"}
    assert set(found.values()) == {0.25, 3e-3}


def test_the_teacher_stays_as_it_is(tmp_path):
    trainer = trainer_of(tmp_path, weights=LossWeights(attention=1.0))
    before = {name: tensor.clone() for name, tensor in trainer.teacher.state_dict().items()}
    trainer.create_optimizer()
    loss = trainer.compute_loss(trainer.model, {"input_ids": random_ids(4, 32)})
    loss.backward()
    trainer.optimizer.step()
    assert loss > 0
    assert all(weight.grad is not None for weight in trainer.model.parameters())
    assert all(weight.grad is None and not weight.requires_grad for weight in trainer.teacher.parameters())
    assert not trainer.teacher.training
    assert_same_tensors(trainer.teacher.state_dict(), before)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_embeddings_are_measured_at_each_length_as_the_model_pools(tmp_path, pooling):
    lengths = (32, 8, 16)
    trainer = trainer_of(
        tmp_path,
        embedding=TextEmbedding((pooling,)),
        measured_lengths=lengths[1:],
        compute_metrics=Measurement(lengths),
    )
    blocks = random_ids(5, 32)
    found = trainer.evaluate([{"input_ids": block} for block in blocks])
    pool = {"mean": np.mean, "cls": lambda states, axis: states[0], "max": np.max}[pooling]
    for length in lengths:
        cut = torch.cat([blocks[:, : length - 1], blocks[:, -1:]], 1)
        cosines = []
        for row in cut:
            with torch.no_grad():
                ours, theirs = (
                    pool(model(row[None]).last_hidden_state[0].numpy(), axis=0)
                    for model in (trainer.model.eval(), trainer.teacher)
                )
            cosines.append(ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs))
        assert found[f"eval_embedding_cosine_{length}"] == pytest.approx(np.mean(cosines), rel=1e-4)
    assert found["eval_embedding_cosine"] == found["eval_embedding_cosine_32"]
    assert "eval_similarity_correlation_16" in found


def test_the_table_has_a_line_for_each_length():
    metrics = {"embedding_cosine": 0.5, "hidden_error_1": 0.1}
    for length, cosine in ((128, 0.5), (16, 0.75)):
        metrics |= {f"embedding_cosine_{length}": cosine, f"similarity_correlation_{length}": 0.25}
    lines = length_table({**metrics, "speedup_128": 1.25})
    assert [line.split() for line in lines[1:]] == [
        ["16", "0.750", "0.250", "-"],
        ["128", "0.500", "0.250", "1.25", "x"],
    ]
    assert lines[0].split() == ["tokens", "cosine", "correlation", "speed"]
    assert length_table({"embedding_cosine": 0.5}) == []

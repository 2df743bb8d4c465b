"""Losses and gradients do not depend on how a step is cut into batches, processes or recomputed layers."""

import pytest
import torch
from conftest import (
    KINDS,
    LEARNED_KINDS,
    LOSS_TOLERANCE,
    assert_close,
    assert_same_tensors,
    for_kinds,
    gradients,
    random_ids,
    random_like,
    tiny_model,
)
from loss_tasks import TASKS, examples_of, model_of, train_one_step, train_steps_of_two
from two_processes import run_by_two

from linformer_hf import LinformerForMaskedLM, LinformerForSequenceClassification


def loss_and_gradients(model, **inputs):
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), gradients(model)


def check_step(task, actual_loss, actual_gradients):
    """Compare a Trainer's step with one forward and backward pass over all examples at once."""
    model = model_of(task)
    loss, expected = loss_and_gradients(model, **examples_of(task))
    assert actual_loss == pytest.approx(loss.item(), rel=LOSS_TOLERANCE)
    assert_same_tensors(actual_gradients, expected, what="gradient of")


@pytest.mark.parametrize(("batch_size", "steps"), [(16, 1), (4, 4), (1, 16)], ids=["16x1", "4x4", "1x16"])
@pytest.mark.parametrize("task", TASKS)
def test_loss_and_gradients_do_not_depend_on_accumulation(task, batch_size, steps):
    check_step(task, *train_one_step(task, batch_size, steps))


@pytest.fixture(scope="module")
def steps_of_two_processes(tmp_path_factory):
    """The logged losses and the gradients of each task when two gloo processes share a step."""
    return run_by_two(train_steps_of_two, tmp_path_factory.mktemp("two_processes") / "steps.pt")


@pytest.mark.parametrize("task", TASKS)
def test_loss_and_gradients_do_not_depend_on_the_number_of_processes(task, steps_of_two_processes):
    check_step(task, *steps_of_two_processes[task])


@pytest.mark.parametrize("task", [task for task in TASKS if task != "question"])
def test_a_loss_is_divided_by_the_items_of_the_whole_step(task):
    model, inputs = model_of(task), examples_of(task)
    count = (inputs["labels"] != -100).sum()
    alone = model(**inputs).loss
    for items in (4 * count, 4 * count.item()):
        assert_close(model(**inputs, num_items_in_batch=items).loss * 4, alone)


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_a_batch_without_labels_adds_nothing_to_a_step(sparse):
    model = tiny_model(LinformerForMaskedLM, sparse_prediction=sparse)
    ids = random_ids(2, 19)
    loss, found = loss_and_gradients(
        model, input_ids=ids, labels=torch.full_like(ids, -100), num_items_in_batch=torch.tensor(7)
    )
    assert loss == 0
    assert not any(gradient.any() for gradient in found.values())


@pytest.mark.parametrize("task", TASKS)
@for_kinds(LEARNED_KINDS)
def test_every_trainable_weight_gets_a_gradient(task, projection_type, projection_sharing):
    model_class, fields = TASKS[task]
    model = tiny_model(
        model_class,
        torch.float32,
        projection_type=projection_type,
        projection_sharing=projection_sharing,
        **fields,
    ).train()
    _, found = loss_and_gradients(model, **examples_of(task))
    without = {name for name, _ in model.named_parameters()} - set(found)
    assert not without
    for name, gradient in found.items():
        assert torch.isfinite(gradient).all(), name
        # a number added to every score changes no probability, so some biases have a gradient of zero
        assert gradient.any() or name.endswith("bias"), name


def test_weights_of_a_functional_call_get_their_own_gradients():
    """The activation is computed again when the module has its own weights back."""
    model, other = (tiny_model(LinformerForMaskedLM, attn_implementation="eager").train() for _ in range(2))
    for weight in other.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    inputs = {"input_ids": random_ids(3, 19), "labels": random_ids(3, 19)}
    loss, expected = loss_and_gradients(other, **inputs)
    weights = {name: weight.detach().requires_grad_() for name, weight in other.named_parameters()}
    called = torch.func.functional_call(model, weights, (), inputs).loss
    found = dict(zip(weights, torch.autograd.grad(called, weights.values())))
    assert torch.equal(called.detach(), loss)
    assert_same_tensors(found, expected, what="gradient of")
    transformed = torch.func.grad(lambda given: torch.func.functional_call(model, given, (), inputs).loss)
    model.eval()  # saved tensors cannot be exchanged within a transform
    assert_same_tensors(transformed(weights), expected, what="gradient of")


def test_with_a_frozen_output_the_activation_is_not_recomputed():
    model = tiny_model(LinformerForMaskedLM).train()
    calls = []
    for layer in model.linformer.layers:
        layer.mlp.activation.register_forward_hook(lambda *_: calls.append(1))
    ids = random_ids(3, 19)
    for is_learned in (True, False):
        for layer in model.linformer.layers:
            layer.mlp.output.requires_grad_(is_learned)
        calls.clear()
        model(ids, labels=ids).loss.backward()
        assert len(calls) == (2 if is_learned else 1) * len(model.linformer.layers)


@for_kinds(KINDS)
@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_recomputed_activations_give_the_same_gradients(projection_type, projection_sharing, use_reentrant):
    model = tiny_model(
        LinformerForMaskedLM,
        projection_type=projection_type,
        projection_sharing=projection_sharing,
        num_hidden_layers=3,
        hidden_dropout_prob=0.1,
    ).train()
    ids, mask = random_ids(3, 19), (torch.arange(19) < torch.tensor([[19], [7], [1]])).long()
    calls = []
    model.linformer.layers[1].mlp.register_forward_hook(lambda *_: calls.append(1))
    results = []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
        calls.clear()
        torch.manual_seed(0)
        results.append(loss_and_gradients(model, input_ids=ids, attention_mask=mask, labels=ids))
        # with checkpointing the layer runs once more on the way back
        assert len(calls) == 1 + checkpointing
    (loss, expected), (actual_loss, actual) = results
    assert torch.equal(actual_loss, loss)
    assert_same_tensors(actual, expected, what="gradient of")


@pytest.mark.parametrize("masked", [False, True], ids=["no-mask", "mask"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_sparse_prediction_has_the_loss_and_gradients_of_the_dense_one(tied, masked):
    dense = tiny_model(LinformerForMaskedLM, sparse_prediction=False, tie_word_embeddings=tied)
    sparse = tiny_model(LinformerForMaskedLM, sparse_prediction=True, tie_word_embeddings=tied)
    ids = random_ids(3, 19)
    labels = torch.where(random_like(torch.zeros(3, 19)) > 0.8, ids, -100)
    mask = (torch.arange(19) < torch.tensor([[19], [7], [12]])).long() if masked else None
    is_labelled = labels != -100
    assert 0 < is_labelled.sum() < 20

    expected, expected_gradients = loss_and_gradients(dense, input_ids=ids, attention_mask=mask, labels=labels)
    actual, actual_gradients = loss_and_gradients(sparse, input_ids=ids, attention_mask=mask, labels=labels)
    assert_close(actual, expected, torch.float32)
    assert_same_tensors(actual_gradients, expected_gradients, torch.float32, "gradient of")

    logits = sparse(ids, mask, labels=labels).logits
    assert logits.shape == (is_labelled.sum(), 61)
    assert_close(logits, dense(ids, mask).logits[is_labelled])
    assert sparse(ids, mask).logits.shape == (3, 19, 61)


def test_labels_decide_the_problem_type_if_the_configuration_has_none():
    def loss(labels, num_labels, problem_type):
        model = tiny_model(LinformerForSequenceClassification, num_labels=num_labels, problem_type=problem_type)
        return model(random_ids(2, 19), labels=labels).loss

    for labels, num_labels, problem_type in (
        (torch.tensor([2, 0]), 3, "single_label_classification"),
        (torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), 3, "multi_label_classification"),
        (torch.tensor([0.3, -2.0]), 1, "regression"),
        (torch.tensor([3, -2]), 1, "regression"),
    ):
        assert torch.equal(loss(labels, num_labels, None), loss(labels, num_labels, problem_type))


def test_the_problem_type_of_the_first_labels_is_stored_in_the_configuration():
    """A pipeline reads there whether the scores of a saved model are a softmax or sigmoids."""
    for labels, num_labels, problem_type in (
        (torch.tensor([2, 0]), 3, "single_label_classification"),
        (torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), 3, "multi_label_classification"),
        (torch.tensor([0.3, -2.0]), 1, "regression"),
    ):
        model = tiny_model(LinformerForSequenceClassification, num_labels=num_labels)
        model(random_ids(2, 19))
        assert model.config.problem_type is None
        model(random_ids(2, 19), labels=labels)
        assert model.config.problem_type == problem_type


def test_a_training_step_changes_every_weight_and_lowers_the_loss():
    torch.manual_seed(0)
    model = model_of("masked-lm").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    inputs = examples_of("masked-lm")
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    losses = []
    for _ in range(5):
        losses.append(loss_and_gradients(model, **inputs)[0].item())
        optimizer.step()
    assert losses == sorted(losses, reverse=True)
    for name, weight in model.named_parameters():
        assert not torch.equal(weight, before[name]), name

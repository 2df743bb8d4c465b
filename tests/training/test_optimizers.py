"""Muon trains the matrices of the layers and AdamW the rest: against torch's own, alone, resumed and in processes."""

import copy
import tempfile
from functools import partial

import pytest
import torch
from conftest import assert_same_tensors, random_ids, tiny_model
from torch import nn
from torch.utils.data import default_collate
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    HfArgumentParser,
    RobertaConfig,
    RobertaForSequenceClassification,
    Trainer,
    TrainingArguments,
    get_scheduler,
)
from two_processes import run_by_two

from linformer_hf import LinformerForMaskedLM
from linformer_hf.training.optimizers import (
    MuonWithAdamW,
    OptimizerArguments,
    choose_optimizer,
    create_muon,
    set_projection_learning_rate,
    split_parameters,
)


EXAMPLES, LENGTH, STEPS = 16, 19, 4
MUON_RATE, RATE, PROJECTION_RATE, DECAY = 3e-3, 1e-3, 5e-4, 0.1
MATRICES = ("query", "key", "value", "output"), ("intermediate", "output")
DENSE = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
DENSE_MODELS = {
    "bert": lambda: BertForMaskedLM(BertConfig(**DENSE, intermediate_size=24)),
    "roberta": lambda: RobertaForSequenceClassification(RobertaConfig(**DENSE, intermediate_size=24)),
    "distilbert": lambda: DistilBertForSequenceClassification(
        DistilBertConfig(vocab_size=61, dim=16, n_layers=2, n_heads=2, hidden_dim=24)
    ),
}


def model_of(dtype=torch.float32, **fields):
    return tiny_model(LinformerForMaskedLM, dtype, **fields).train()


def rows():
    ids = random_ids(EXAMPLES, LENGTH)
    return [{"input_ids": words, "labels": words} for words in ids]


def training(folder, **changes):
    """Four steps of eight examples in order, with everything on that changes gradients, weights or rates."""
    defaults = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "train_sampling_strategy": "sequential",
        "max_steps": STEPS,
        "learning_rate": RATE,
        "warmup_steps": 1,
        "weight_decay": DECAY,
        "max_grad_norm": 0.5,
        "logging_steps": 1,
        "save_steps": 2,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "ddp_find_unused_parameters": False,
    }
    return TrainingArguments(**{**defaults, **changes})


class ProjectionTrainer(Trainer):
    """A Trainer whose projections have their own rate, as in distillation."""

    def create_optimizer(self, model=None):
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new:
            set_projection_learning_rate(optimizer, self.model, PROJECTION_RATE)
        return optimizer


def trainer_of(model, arguments, trainer_class=Trainer):
    return trainer_class(
        model,
        arguments,
        train_dataset=rows(),
        data_collator=default_collate,
        optimizer_cls_and_kwargs=choose_optimizer(True, MUON_RATE, arguments),
    )


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def assert_equal(actual, expected):
    """Compare the weights of two models bit by bit."""
    for (name, weight), other in zip(expected.named_parameters(), actual.parameters()):
        assert torch.equal(other, weight), name


def make_muon(model, rate=RATE, muon_rate=MUON_RATE):
    return create_muon(model, muon_rate, DECAY, {"lr": rate})


def optimizers_by_hand(model):
    """Torch's own two algorithms, over parameters that are told apart by their names."""
    groups = {"matrices": [], "decayed": [], "undecayed": []}
    for name, weight in model.named_parameters():
        if name.endswith(".weight") and ".layers." in name and "norm" not in name and "projection" not in name:
            groups["matrices"].append(weight)
        elif name.endswith("bias") or "norm" in name:
            groups["undecayed"].append(weight)
        else:
            groups["decayed"].append(weight)
    muon = torch.optim.Muon(groups["matrices"], lr=MUON_RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    others = [
        {"params": groups["decayed"], "weight_decay": DECAY},
        {"params": groups["undecayed"], "weight_decay": 0.0},
    ]
    return muon, torch.optim.AdamW(others, lr=RATE)


def step_by_hand(optimizer):
    """Take a step with the products of Muon in float32, as they are to be on a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.to(torch.float32, copy=True))
        optimizer.step()


def train_by_hand(model, max_grad_norm):
    """Take the steps of `training` in a plain loop."""
    optimizers = optimizers_by_hand(model)
    schedulers = [
        get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=STEPS) for optimizer in optimizers
    ]
    ids = random_ids(EXAMPLES, LENGTH)
    for step in range(STEPS):
        words = ids[8 * (step % 2) :][:8]
        model(words, labels=words).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        for optimizer, scheduler in zip(optimizers, schedulers):
            step_by_hand(optimizer)
            scheduler.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value", "layerwise"])
@pytest.mark.parametrize("projection_type", ["linear", "conv"])
def test_muon_gets_the_maps_of_a_linformer_and_nothing_else(projection_type, sharing):
    model = model_of(projection_type=projection_type, projection_sharing=sharing)
    matrices, others = split_parameters(model)
    attention, mlp = MATRICES
    paths = [f"attention.{name}" for name in attention] + [f"mlp.{name}" for name in mlp]
    assert set(matrices) == {f"linformer.layers.{layer}.{path}.weight" for layer in range(2) for path in paths}
    assert set(matrices) | set(others) == set(weights_of(model))
    assert not set(matrices) & set(others)
    assert any("projection" in name for name in others)


@pytest.mark.parametrize("family", DENSE_MODELS)
def test_muon_gets_the_maps_of_a_dense_encoder_and_neither_embeddings_nor_heads(family):
    model = DENSE_MODELS[family]()
    matrices, others = split_parameters(model)
    assert len(matrices) == 2 * 6
    assert all(".layer." in name and name.endswith("weight") and "norm" not in name.lower() for name in matrices)
    left = {name for name, weight in others.items() if weight.dim() > 1}
    assert all("embeddings" in name or "cls." in name or "classifier" in name for name in left)
    assert set(matrices) | set(others) == set(weights_of(model))


def test_a_frozen_weight_is_in_neither_part():
    model = model_of()
    frozen = {"linformer.layers.0.mlp.output.weight", "linformer.embeddings.word_embeddings.weight"}
    for name, weight in model.named_parameters():
        weight.requires_grad_(name not in frozen)
    matrices, others = split_parameters(model)
    assert set(weights_of(model)) - set(matrices) - set(others) == frozen


def test_a_model_without_matrices_in_layers_is_refused():
    model = model_of()
    model.linformer.layers.requires_grad_(False)
    for without in (model, nn.Sequential(nn.Linear(3, 3))):
        with pytest.raises(ValueError, match=f"--use_muon.*{type(without).__name__} has none"):
            split_parameters(without)


@pytest.mark.parametrize("family", ["linformer", *DENSE_MODELS])
def test_the_weights_that_decay_are_those_that_the_trainer_lets_decay(family, tmp_path):
    model = model_of() if family == "linformer" else DENSE_MODELS[family]()
    optimizer = make_muon(model)
    names = {id(weight): name for name, weight in model.named_parameters()}
    decaying = {
        names[id(weight)] for group in optimizer.param_groups if group["weight_decay"] for weight in group["params"]
    }
    expected = Trainer(model, training(tmp_path)).get_decay_parameter_names(model)
    assert decaying == set(expected) & set(names.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("projection_sharing", ["none", "layerwise"])
def test_a_trainer_takes_the_steps_of_both_algorithms(tmp_path, dtype, projection_sharing):
    """Clipping, decay and schedule included: both rates rise and fall together."""
    model = model_of(dtype, projection_sharing=projection_sharing)
    expected = copy.deepcopy(model)
    train_by_hand(expected, max_grad_norm=0.5)
    before = weights_of(model)
    trainer = trainer_of(model, training(tmp_path, optim="adamw_torch", save_strategy="no"))
    trainer.train()
    assert_same_tensors(weights_of(model), weights_of(expected), what="weight")
    assert all(not torch.equal(before[name], weight) for name, weight in weights_of(model).items())


def test_the_rate_that_is_logged_is_that_of_adamw_and_both_follow_the_schedule(tmp_path):
    trainer = trainer_of(model_of(), training(tmp_path, save_strategy="no"))
    rates = []
    trainer.create_optimizer_and_scheduler(STEPS)
    for _ in range(STEPS):
        rates.append(trainer.get_learning_rates())
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    factors = [0, 1, 2 / 3, 1 / 3]
    assert rates == [pytest.approx([RATE * factor, RATE * factor, MUON_RATE * factor]) for factor in factors]
    trainer = trainer_of(model_of(), training(tmp_path, save_strategy="no"))
    trainer.train()
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert logged == pytest.approx([RATE * factor for factor in factors])


def test_on_a_cpu_nothing_is_rounded_to_bfloat16_and_the_update_is_that_of_torch():
    torch.manual_seed(0)
    matrices = [nn.Parameter(torch.zeros(48, 96)) for _ in range(3)]
    gradient = torch.randn(48, 96)
    for matrix in matrices:
        matrix.grad = gradient
    options = {"lr": 1.0, "weight_decay": 0.0}
    ours, exact, rounded = matrices
    MuonWithAdamW([ours], [nn.Parameter(torch.zeros(1))], options, {}).step()
    step_by_hand(torch.optim.Muon([exact], **options))
    torch.optim.Muon([rounded], **options).step()
    assert torch.equal(ours, exact)
    assert 0 < (ours - rounded).norm() < 0.02 * rounded.norm()


@pytest.mark.parametrize("shape", [(64, 64), (128, 32), (32, 128)])
def test_an_update_of_muon_is_a_fifth_of_its_rate_in_every_shape(shape):
    """So that its rate is in AdamW's units; the orthogonalization of torch leaves singular values of 0.7 to 1.2."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(*shape, bias=False)])
    model.embedding = nn.Embedding(2, 2)
    optimizer = create_muon(model, MUON_RATE, 0.0, {"lr": RATE})
    before = model[0].weight.detach().clone()
    model[0].weight.grad = torch.randn_like(before)
    optimizer.step()
    assert (model[0].weight - before).square().mean().sqrt().item() == pytest.approx(0.2 * MUON_RATE, rel=0.25)


def backward(model, seed):
    words = random_ids(3, LENGTH, seed=seed)
    model.zero_grad()
    model(words, labels=words).loss.backward()


@pytest.mark.parametrize("how", ["state dict", "file", "copy"])
def test_what_is_saved_of_an_optimizer_is_all_that_the_next_steps_need(how, tmp_path):
    model = model_of()
    optimizer = make_muon(model)
    for seed in range(3):
        backward(model, seed)
        optimizer.step()
    if how == "copy":
        other, again = copy.deepcopy((model, optimizer))
    else:
        other = copy.deepcopy(model)
        again = make_muon(other, rate=1.0, muon_rate=2.0)  # the saved rates replace these
        state = copy.deepcopy(optimizer.state_dict())  # the same tensors would otherwise serve both
        if how == "file":
            torch.save(state, tmp_path / "optimizer.pt")
            state = torch.load(tmp_path / "optimizer.pt", weights_only=True)
        again.load_state_dict(state)
    for seed in range(3, 5):
        for each, stepper in ((model, optimizer), (other, again)):
            backward(each, seed)
            stepper.step()
    assert_equal(other, model)


def test_the_state_of_another_optimizer_is_refused():
    model = model_of()
    with pytest.raises(ValueError, match="not one of Muon with AdamW.*--use_muon"):
        make_muon(model).load_state_dict(torch.optim.AdamW(model.parameters()).state_dict())


def test_a_group_without_an_algorithm_is_added_to_adamw():
    model, added = model_of(), nn.Parameter(torch.ones(3))
    optimizer = make_muon(model)
    optimizer.add_param_group({"params": [added], "lr": 0.5})
    added.grad = torch.ones(3)
    optimizer.step()
    alone = nn.Parameter(torch.ones(3))
    alone.grad = torch.ones(3)
    torch.optim.AdamW([alone], lr=0.5).step()
    assert torch.equal(added, alone)


def test_a_closure_is_called_once_and_its_loss_returned():
    model, calls = model_of(), []
    optimizer = make_muon(model)
    expected = copy.deepcopy(model)

    def closure():
        calls.append(torch.is_grad_enabled())
        backward(model, 0)
        return 7.0

    assert optimizer.step(closure) == 7.0
    assert calls == [True]
    backward(expected, 0)
    for by_hand in optimizers_by_hand(expected):
        step_by_hand(by_hand)
    assert_equal(model, expected)


def test_a_gradient_scaler_scales_nothing_and_skips_what_overflows():
    model = model_of()
    expected = copy.deepcopy(model)
    optimizer, unscaled = make_muon(model), make_muon(expected)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = weights_of(model)
    words = random_ids(3, LENGTH)
    for has_overflow in (True, False):
        optimizer.zero_grad()
        scaler.scale(model(words, labels=words).loss).backward()
        if has_overflow:
            model.linformer.layers[0].mlp.output.weight.grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        if has_overflow:
            assert_same_tensors(weights_of(model), before, what="weight")
    expected(words, labels=words).loss.backward()
    unscaled.step()
    assert_same_tensors(weights_of(model), weights_of(expected), what="weight")


def test_a_trainer_in_bfloat16_keeps_weights_and_state_in_float32(tmp_path):
    model = model_of()
    trainer = trainer_of(model, training(tmp_path, bf16=True, max_steps=8, save_strategy="no"))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert all(weight.dtype == torch.float32 for weight in model.parameters())
    kept = [value for state in trainer.optimizer.state.values() for value in state.values()]
    assert len(kept) > len(weights_of(model))
    assert all(value.dtype == torch.float32 for value in kept)


@pytest.mark.parametrize("trainer_class", [Trainer, ProjectionTrainer])
def test_a_resumed_run_ends_with_the_weights_of_an_unbroken_one(tmp_path, trainer_class):
    unbroken = trainer_of(model_of(), training(tmp_path / "unbroken"), trainer_class)
    unbroken.train()
    resumed = trainer_of(
        tiny_model(LinformerForMaskedLM, torch.float32), training(tmp_path / "resumed"), trainer_class
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "unbroken" / "checkpoint-2"))
    assert resumed.state.global_step == STEPS
    assert_equal(resumed.model, unbroken.model)


@pytest.mark.parametrize("use_muon", [True, False], ids=["muon", "adamw"])
@pytest.mark.parametrize("sharing", ["none", "layerwise"])
def test_projections_may_have_their_own_rate(tmp_path, sharing, use_muon):
    arguments = training(tmp_path)
    model = model_of(projection_sharing=sharing)
    trainer = ProjectionTrainer(
        model,
        arguments,
        optimizer_cls_and_kwargs=choose_optimizer(use_muon, MUON_RATE if use_muon else None, arguments),
    )
    rates = {
        id(weight): group["lr"] for group in trainer.create_optimizer().param_groups for weight in group["params"]
    }
    matrices, _ = split_parameters(model)
    for name, weight in model.named_parameters():
        expected = MUON_RATE if use_muon and name in matrices else RATE
        assert rates[id(weight)] == (PROJECTION_RATE if "projection" in name else expected), name
    assert len(rates) == len(weights_of(model))


def train_in_this_process(batch_size):
    """Train in float64: the gradient of a key's bias is rounding alone, and AdamW makes whole steps of it."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = training(folder, per_device_train_batch_size=batch_size, save_strategy="no", optim="adamw_torch")
        trainer = trainer_of(model_of(torch.float64), arguments)
        trainer.train()
        return weights_of(trainer.model)


def test_two_processes_end_with_the_weights_of_one(tmp_path):
    weights = run_by_two(partial(train_in_this_process, batch_size=4), tmp_path / "weights.pt")
    assert_same_tensors(weights, train_in_this_process(batch_size=8), what="weight")


def test_options_are_parsed_beside_those_of_the_trainer(tmp_path):
    parser = HfArgumentParser((OptimizerArguments, TrainingArguments))
    line = ["--output_dir", str(tmp_path), "--use_cpu", "--optim", "adamw_torch", "--learning_rate", "2e-3"]
    options, arguments = parser.parse_args_into_dataclasses(line)
    assert choose_optimizer(options.use_muon, options.muon_learning_rate, arguments) is None
    for given, rate in (([], 2e-3), (["--muon_learning_rate", "8e-3"], 8e-3)):
        options, arguments = parser.parse_args_into_dataclasses([*line, "--use_muon", *given])
        _, settings = choose_optimizer(options.use_muon, options.muon_learning_rate, arguments)
        assert settings["muon_learning_rate"] == rate
        assert settings["adamw_options"]["lr"] == 2e-3


@pytest.mark.parametrize(
    ("changes", "use_muon", "rate", "message"),
    [
        ({}, False, 1e-3, "--muon_learning_rate is 0.001.*--use_muon"),
        ({}, True, 0.0, "--muon_learning_rate is 0.0; it must be more than 0"),
        ({"optim": "adafactor"}, True, None, "--optim is adafactor.*adamw_torch_fused"),
        ({"optim": "sgd"}, True, None, "--optim is sgd.*adamw_torch_fused"),
        ({"fsdp": True}, True, None, "--fsdp shards the matrices that --use_muon needs whole"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, changes, use_muon, rate, message):
    with pytest.raises(ValueError, match=message):
        choose_optimizer(use_muon, rate, training(tmp_path, **changes))


def test_sharding_that_a_launcher_asks_for_is_refused(tmp_path, monkeypatch):
    arguments = training(tmp_path)
    with monkeypatch.context() as context:
        context.setenv("ACCELERATE_USE_FSDP", "true")
        with pytest.raises(ValueError, match="--fsdp shards"):
            choose_optimizer(True, None, arguments)
        assert choose_optimizer(False, None, arguments) is None
    monkeypatch.setattr(arguments, "deepspeed_plugin", object())
    with pytest.raises(ValueError, match="--deepspeed shards"):
        choose_optimizer(True, None, arguments)

"""One model at one task and length: its memory, and its seconds beside other models."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ..common.measurement import peak_bytes, saved_activation_bytes, seconds_in_turns
from ..configuration_linformer import LinformerConfig
from ..modeling_linformer import LinformerProjection
from .baselines import MeasuredModel, build
from .inputs import make_inputs
from .isolation import Record, reason


TASKS = ("inference", "training", "mlm")


@dataclass(frozen=True)
class Case:
    """What is measured.

    Args:
        model: The model.
        config: Its shape; n is the longest input that it can read.
        task: `"inference"`, `"training"` or `"mlm"`.
        num_tokens: Tokens of the longest text of the batch.
        batch_size: Texts of the batch.
        padded_share: Share of the batch that is padding.
        dtype: `"float32"` or `"bfloat16"`.
        device: `"cpu"` or `"cuda"`.
        threads: Threads of a CPU.
        compiled: Compile the model first.
    """

    model: MeasuredModel
    config: LinformerConfig
    task: str
    num_tokens: int
    batch_size: int
    padded_share: float
    dtype: str
    device: str
    threads: int
    compiled: bool


def measure_memory(case: Case) -> Record:
    """Measure the memory that a step adds to the loaded model.

    Returns:
        `parameters`, `peak_bytes`, and of a training step the `saved_bytes` among them.
    """
    device = prepare(case)
    model = load(case)
    step, forward = make_step(model, case)
    if case.compiled:
        step()  # the memory of the compiler is not that of the model
    record = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "peak_bytes": peak_bytes(step, device),
    }
    if case.task != "inference" and not case.compiled:  # hooks do not see all that compiled code saves
        record["saved_bytes"] = saved_activation_bytes(model, forward)
    return record


def measure_seconds(cases: list[Case], rounds: int) -> Record:
    """Time several models in turns.

    Args:
        cases: The models, on one device.
        rounds: Number of rounds.

    Returns:
        `seconds` of each round by model, and `failures` by model.
    """
    device = prepare(cases[0])
    steps, failures = {}, {}
    for case in cases:
        try:
            step, _ = make_step(load(case), case)
            step()  # the first call also compiles and allocates, and is not timed
            steps[str(case.model)] = step
        except Exception as error:  # any failure of a model is a result of the benchmark
            failures[str(case.model)] = reason(error)
        step = None  # frees a model that failed before the next one is loaded
    return {"seconds": seconds_in_turns(steps, rounds, device), "failures": failures}


def prepare(case: Case) -> torch.device:
    """Set up this process, and return the device to compute on."""
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    return torch.device(case.device)


def load(case: Case) -> nn.Module:
    """Build the model of a case, in training mode where its task trains."""
    model = build(case.model.name, case.config, with_head=case.task == "mlm")
    if case.model.name == "linformer":
        fill_projections(model)
    model.to(case.device, getattr(torch, case.dtype)).train(case.task != "inference")
    if case.compiled:
        model.compile()
    return model


def fill_projections(model: nn.Module) -> None:
    """Draw the projections of a Linformer, so that it costs what a trained one costs.

    The zeros of a new projection would let a model skip slots that a short text does not reach; training leaves none.
    """
    for module in model.modules():
        if isinstance(module, LinformerProjection):
            nn.init.normal_(module.weight, std=module.weight.shape[-1] ** -0.5)


def make_step(model: nn.Module, case: Case) -> tuple[Callable[[], None], Callable[[], torch.Tensor]]:
    """Return the step that is measured, and the forward pass in it."""
    generator = torch.Generator().manual_seed(0)
    with_labels = case.task == "mlm"
    inputs = make_inputs(
        case.batch_size, case.num_tokens, case.config.vocab_size, case.padded_share, with_labels, generator
    )
    forward: Callable[[], Any] = partial(model, **{name: tensor.to(case.device) for name, tensor in inputs.items()})
    # the gradient that a head would send back
    shape = (case.batch_size, case.num_tokens, case.config.hidden_size)
    gradient = torch.randn(shape, generator=generator).to(case.device, getattr(torch, case.dtype))

    def infer() -> None:
        with torch.inference_mode():
            forward()

    def train() -> None:
        outputs = forward()
        outputs.backward(None if with_labels else gradient)
        model.zero_grad()

    return (infer if case.task == "inference" else train), forward

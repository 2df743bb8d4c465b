"""Muon for the matrices of the transformer layers, AdamW for every other weight, as one optimizer of a Trainer."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import Trainer, TrainingArguments
from transformers.utils import logging


logger = logging.get_logger(__name__)

ADAMW, MUON = "adamw", "muon"  # values of `algorithm` in a parameter group
ADJUSTMENT = "match_rms_adamw"  # so that a rate means the same for both algorithms and for matrices of every shape


@dataclass
class OptimizerArguments:
    """Which algorithm trains the matrices of the layers."""

    use_muon: bool = field(
        default=False,
        metadata={
            "help": "Train the matrices of the transformer layers with Muon (torch.optim.Muon), and embeddings, "
            "norms, biases, heads and the projections E and F with AdamW. By default AdamW trains all."
        },
    )
    muon_learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Learning rate of Muon, in AdamW's units: an update has a root mean square of 0.2 times the rate, "
            "in a matrix of any shape (torch's adjust_lr_fn='match_rms_adamw'). By default --learning_rate. The "
            "schedule scales both rates by the same factor."
        },
    )


class InFloat32(TorchFunctionMode):
    """Compute in float32 what is asked for in bfloat16 on a CPU.

    `torch.optim.Muon` multiplies its matrices in bfloat16, which most CPUs only emulate: five times slower than
    float32 on one with AVX2. On other devices nothing changes.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.bfloat16 and args[0].device.type == "cpu":
            return args[0].to(torch.float32, copy=True)  # a copy, because it is changed in place
        return func(*args, **(kwargs or {}))


class MuonWithAdamW(torch.optim.Optimizer):
    """One optimizer whose parameter groups are trained by `torch.optim.Muon` or by `torch.optim.AdamW`.

    Groups and state are kept here and set in the two algorithms for each step, so that whatever changes them (a
    scheduler, a checkpoint) changes them for both. A group names its algorithm under `"algorithm"`; one that is added
    without it is trained by AdamW. The groups of AdamW come first: the Trainer logs the rate of the first group.
    On a CPU, Muon computes in float32 (see `InFloat32`).

    Args:
        matrices: Parameters for Muon, each with two dimensions.
        others: Parameters or parameter groups for AdamW.
        muon_options: Further arguments of `torch.optim.Muon`.
        adamw_options: Further arguments of `torch.optim.AdamW`.

    Raises:
        ValueError: If a parameter for Muon does not have two dimensions, or an option is out of range.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        others: list[nn.Parameter] | list[dict[str, Any]],
        muon_options: Mapping[str, Any],
        adamw_options: Mapping[str, Any],
    ) -> None:
        self.algorithms = {
            ADAMW: torch.optim.AdamW(others, **adamw_options),
            MUON: torch.optim.Muon(matrices, **muon_options),
        }
        groups = [
            {**group, "algorithm": name}
            for name, optimizer in self.algorithms.items()
            for group in optimizer.param_groups
        ]
        super().__init__(groups, defaults={})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with the defaults of the algorithm that it names under `"algorithm"`, or of AdamW."""
        name = param_group.get("algorithm", ADAMW)
        super().add_param_group({**self.algorithms[name].defaults, "algorithm": name, **param_group})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step of both algorithms, and return the loss of `closure` where one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for name, optimizer in self.algorithms.items():
            optimizer.param_groups = [group for group in self.param_groups if group["algorithm"] == name]
            optimizer.state = self.state
            with InFloat32():
                optimizer.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned.

        Raises:
            ValueError: If it was saved by another optimizer.
        """
        saved, own = (
            [group.get("algorithm") for group in groups] for groups in (state_dict["param_groups"], self.param_groups)
        )
        if saved != own:
            raise ValueError(
                "The state to load is not one of Muon with AdamW over the same groups; resume with the options of the "
                "run that saved it (--use_muon or not), or start a new run in another --output_dir."
            )
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "algorithms": self.algorithms}


def split_parameters(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Divide the trainable parameters into the matrices of the transformer layers and all others.

    A matrix of the layers is the weight of an `nn.Linear` in a list of modules (`nn.ModuleList`) of the encoder: the
    maps of attention and MLP in Linformer, BERT, RoBERTa, DistilBERT and their like. Poolers and heads lie outside of
    the list; embeddings and the projections E and F are no linear maps.

    Args:
        model: An encoder, with or without a head.

    Returns:
        Both by the name of the parameter in the model.

    Raises:
        ValueError: If there is no such matrix.
    """
    encoder = getattr(model, "base_model", model)
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
    maps = [module for layers in lists for module in layers.modules() if isinstance(module, nn.Linear)]
    in_layers = {id(module.weight) for module in maps}
    trainable = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    matrices = {name: weight for name, weight in trainable.items() if id(weight) in in_layers}
    if not matrices:
        raise ValueError(
            f"--use_muon trains the matrices of the layers, and a {type(model).__name__} has none that is trainable; "
            "train it without --use_muon."
        )
    return matrices, {name: weight for name, weight in trainable.items() if name not in matrices}


def create_muon(
    model: nn.Module, muon_learning_rate: float, weight_decay: float, adamw_options: Mapping[str, Any]
) -> MuonWithAdamW:
    """Make the optimizer that trains the matrices of the layers with Muon and all other weights with AdamW.

    Args:
        model: An encoder, with or without a head.
        muon_learning_rate: Of the matrices, in AdamW's units: an update has a root mean square of about 0.2 times it.
        weight_decay: Decoupled, of everything but biases and norms.
        adamw_options: Arguments of `torch.optim.AdamW`: `lr`, `betas`, `eps`, `fused`.

    Raises:
        ValueError: If the model has no trainable matrices in layers.
    """
    matrices, others = split_parameters(model)
    decayed = [weight for weight in others.values() if weight.dim() > 1]
    undecayed = [weight for weight in others.values() if weight.dim() <= 1]  # biases and norms
    logger.info(f"Muon trains {len(matrices)} matrices of the layers; AdamW trains {len(others)} other weights.")
    return MuonWithAdamW(
        list(matrices.values()),
        [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}],
        {"lr": muon_learning_rate, "weight_decay": weight_decay, "adjust_lr_fn": ADJUSTMENT},
        adamw_options,
    )


def muon_factory() -> Callable[..., MuonWithAdamW]:
    """Return what makes the optimizer: the Trainer calls a factory before it has the model's parameters."""
    return create_muon


def choose_optimizer(
    use_muon: bool, muon_learning_rate: float | None, training: TrainingArguments
) -> tuple[Callable[[], Callable[..., MuonWithAdamW]], dict[str, Any]] | None:
    """Return what a Trainer takes as `optimizer_cls_and_kwargs`; None leaves it its own optimizer.

    Args:
        use_muon: Train the matrices of the layers with Muon.
        muon_learning_rate: Its learning rate; None means `training.learning_rate`.
        training: The Trainer's own arguments.

    Raises:
        ValueError: If options contradict each other, or Muon cannot be used with them.
    """
    if not use_muon:
        if muon_learning_rate is not None:
            raise ValueError(
                f"--muon_learning_rate is {muon_learning_rate}, but AdamW trains all weights; give --use_muon too, or "
                "leave it out."
            )
        return None
    if muon_learning_rate is not None and muon_learning_rate <= 0:
        raise ValueError(f"--muon_learning_rate is {muon_learning_rate}; it must be more than 0.")
    if not hasattr(torch.optim, "Muon"):
        raise ValueError(f"--use_muon needs torch 2.9 or newer, and this is {torch.__version__}; install a newer one.")
    check_sharding(training)
    optimizer, adamw_options = Trainer.get_optimizer_cls_and_kwargs(training)
    if optimizer is not torch.optim.AdamW:
        raise ValueError(
            f"--optim is {training.optim.value}, and --use_muon trains all but the matrices with AdamW; give --optim "
            "adamw_torch_fused or adamw_torch, or leave out --use_muon."
        )
    rate = training.learning_rate if muon_learning_rate is None else muon_learning_rate
    return muon_factory, {
        "muon_learning_rate": rate,
        "weight_decay": training.weight_decay,
        "adamw_options": adamw_options,
    }


def uses_fsdp(training: TrainingArguments) -> bool:
    """Tell whether FSDP shards the model, as the Trainer or `accelerate launch` was asked."""
    return bool(training.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"


def check_sharding(training: TrainingArguments) -> None:
    """Check that every process will hold whole matrices, whose singular vectors Muon needs.

    `torch.optim.Muon` gathers the matrices that FSDP shards in each of its iterations, and rounds their products
    otherwise than one process does; DeepSpeed flattens them.

    Raises:
        ValueError: If they will be sharded.
    """
    sharding = {
        "--fsdp": uses_fsdp(training),
        "--deepspeed": training.deepspeed_plugin is not None,
    }
    for option, is_asked in sharding.items():
        if is_asked:
            raise ValueError(
                f"{option} shards the matrices that --use_muon needs whole; train with several processes without "
                f"{option}, or leave out --use_muon."
            )


def set_projection_learning_rate(
    optimizer: torch.optim.Optimizer, model: nn.Module, projection_learning_rate: float
) -> None:
    """Move the projections E and F of a Linformer into groups with their own learning rate.

    To be called before a scheduler is made.

    Args:
        optimizer: Holds the parameters of the model.
        model: A Linformer, with or without a head.
        projection_learning_rate: Of the projections, instead of their group's.
    """
    projections = {id(weight) for name, weight in model.named_parameters() if name.endswith("projection.weight")}
    for group in list(optimizer.param_groups):
        own = [weight for weight in group["params"] if id(weight) in projections]
        group["params"] = [weight for weight in group["params"] if id(weight) not in projections]
        if own:
            optimizer.add_param_group({**group, "params": own, "lr": projection_learning_rate})

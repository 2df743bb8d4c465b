"""Convert a dense encoder in memory: copy weights by name, cut or extend positions, initialize projections."""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from ..common.loading import model_length
from ..configuration_linformer import LinformerConfig
from ..modeling_linformer import LinformerPreTrainedModel
from .families import FAMILIES, check_convertible, dense_head, module_names, our_class, translate_config
from .projections import PROJECTION_STARTS, start_projections


POSITION_GROWTHS = ("tile", "interpolate")


@dataclass
class ConversionReport:
    """Which tensors were copied, by name, and which were not.

    Args:
        copied: Dense tensors, and the tensor of the Linformer that each was copied to.
        left_out: Dense tensors that have no counterpart in a Linformer.
        new: Tensors of the Linformer that have no dense counterpart, and how they were initialized.
        notes: What was changed, in sentences.
    """

    copied: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    new: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as lines of text; of the tensors that were copied only their number."""
        return [
            f"{len(self.copied)} tensors copied.",
            *self.notes,
            *(f"new: {name} ({start})" for name, start in self.new.items()),
            *(f"left out: {name}" for name in self.left_out),
        ]


def convert_model(
    dense: PreTrainedModel,
    max_position_embeddings: int | None = None,
    projected_length: int | list[int] = 128,
    projection_sharing: str = "layerwise",
    projection_type: str = "linear",
    projection_start: str = "leading",
    position_growth: str = "tile",
    fresh: Collection[str] = (),
) -> tuple[LinformerPreTrainedModel, ConversionReport]:
    """Make a Linformer with the weights of a dense encoder, and with its head where a Linformer has such a head.

    With k = n it computes what the dense model computes. Head, labels, dropout rates, weight tying, dtype and device
    are kept; the dense model is not changed.

    Args:
        dense: A BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT or ELECTRA.
        max_position_embeddings: n in tokens; None takes the dense model's longest input.
        projected_length: k, for all layers or one per layer.
        projection_sharing: As in `LinformerConfig`.
        projection_type: As in `LinformerConfig`.
        projection_start: As in `projections.start_matrix`.
        position_growth: How a longer position table is made: `"tile"` repeats the dense model's rows, `"interpolate"`
            interpolates between them.
        fresh: Dense tensors that were not in the checkpoint but initialized at random; the report lists them as new.

    Returns:
        The Linformer, in evaluation mode, and the report.

    Raises:
        ValueError: If the dense model is of a family that is not supported, or the numbers do not fit; the message
            gives the reason.
    """
    check_convertible(dense.config, type(dense).__name__)
    for name, value, allowed in (
        ("projection_start", projection_start, PROJECTION_STARTS),
        ("position_growth", position_growth, POSITION_GROWTHS),
    ):
        if value not in allowed:
            raise ValueError(f"`{name}` is {value!r}; it must be one of {', '.join(allowed)}.")
    head = dense_head(type(dense).__name__, FAMILIES[dense.config.model_type])
    token_types = getattr(dense.base_model.embeddings, "token_type_embeddings", None)
    config = translate_config(
        dense.config,
        head,
        vocab_size=dense.get_input_embeddings().num_embeddings,
        type_vocab_size=1 if token_types is None else token_types.num_embeddings,
        max_position_embeddings=model_length(dense) if max_position_embeddings is None else max_position_embeddings,
        projected_length=projected_length,
        projection_sharing=projection_sharing,
        projection_type=projection_type,
    )
    model = our_class(head)(config).to(device=dense.device, dtype=dense.dtype).eval()
    start_projections(model, projection_start)
    report = move_weights(dense, model, position_growth, fresh)
    filled = {*report.copied.values(), *report.new}
    for name in (name for name in model.state_dict() if name not in filled):
        report.new[name] = describe_projection(model.get_parameter(name), config, projection_start)
    return model, report


@torch.no_grad()
def move_weights(
    dense: PreTrainedModel, model: LinformerPreTrainedModel, position_growth: str, fresh: Collection[str]
) -> ConversionReport:
    """Copy every weight that both models have; token type embeddings that the dense model lacks become zeros.

    Returns:
        The report, in which only the projections are still missing.
    """
    report, names, ours = ConversionReport(), module_names(dense), model.state_dict()
    for name, tensor in dense.state_dict().items():
        module, _, parameter = name.rpartition(".")
        if module not in names:
            if name not in fresh:
                report.left_out.append(name)
            continue
        target = f"{names[module]}.{parameter}"
        if target.endswith("position_embeddings.weight"):
            learned = tensor[-model_length(dense) :]
            tensor = fit_positions(learned, len(ours[target]), position_growth)
            if len(tensor) != len(learned):
                how = position_growth if len(tensor) > len(learned) else "cut"
                report.notes.append(f"Positions: {len(learned)} learned, {len(tensor)} now ({how}).")
        ours[target].copy_(tensor)
        if name in fresh:
            report.new[target] = "random, not in the checkpoint"
        else:
            report.copied[name] = target
    for name in (name for name in ours if name.endswith("token_type_embeddings.weight")):
        if name not in report.copied.values():
            ours[name].zero_()
            report.new[name] = "zeros, the dense model has no token types"
    return report


def fit_positions(rows: torch.Tensor, length: int, growth: str) -> torch.Tensor:
    """Cut or grow a position table, `(rows, M)`, to a length, as `convert_model` says."""
    if length <= len(rows) or growth == "tile":
        return rows[torch.arange(length, device=rows.device) % len(rows)]
    return F.interpolate(rows.T[None].float(), size=length, mode="linear", align_corners=True)[0].T


def describe_projection(weight: torch.Tensor, config: LinformerConfig, start: str) -> str:
    """Return in a word how a projection was initialized."""
    if config.projection_type == "conv":
        return "mean"
    return "identity" if weight.shape[-2] == weight.shape[-1] else start

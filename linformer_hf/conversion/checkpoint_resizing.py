"""Give a saved Linformer another n, k, or both, in a new folder, and keep what it has learned."""

import copy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers.utils import logging

from ..common.files import check_new_folder, whole_or_nothing
from ..common.heads import head_of_checkpoint
from ..common.loading import LoadingArguments, load_config, load_whole
from ..common.measurement import Stopwatch
from ..common.records import model_facts, read_results, write_results
from ..configuration_linformer import LinformerConfig
from ..modeling_linformer import LinformerPreTrainedModel
from ..sharing.hub import save_for_hub
from .checkpoint_conversion import REPORT, adapted_tokenizer, carry_companions, next_command
from .companion_files import about_parent, local_folder
from .projections import attentions_in, change_projected_length, matrices_of, projections_in, unread_tokens


logger = logging.get_logger(__name__)


@dataclass(kw_only=True)
class ResizingArguments(LoadingArguments):
    """Options of a change of n and k."""

    model_name_or_path: str = field(metadata={"help": "The Linformer, a folder or on the Hub."})
    output_dir: str = field(metadata={"help": "The folder of the Linformer with the new size; new or empty."})
    max_seq_length: int | None = field(
        default=None,
        metadata={
            "help": "The new n, the longest input in tokens. By default it stays. With pooling or convolution the "
            "window stays, and k changes with n."
        },
    )
    projected_length: list[int] | None = field(
        default=None,
        metadata={
            "help": "The new k, the slots: a number, or several, of which the last holds for all further layers. "
            "By default it stays. With a larger n, the new slots average the new tokens."
        },
    )


def resize_checkpoint(arguments: ResizingArguments) -> LinformerPreTrainedModel:
    """Change n and k of a saved Linformer, and save it in a folder that loads as its parent does.

    By `resize_position_embeddings` and `change_projected_length`. With linear projections, a larger n and as many new
    slots as there are new tokens or fewer, texts that fitted before give the same output as before.

    Args:
        arguments: What is changed, and where to.

    Returns:
        The model, in evaluation mode.

    Raises:
        ValueError: If the model is no Linformer, is damaged, has no tokenizer or holds tensors that its class lacks,
            nothing is to be changed, the numbers do not fit, or the output folder is not empty. Nothing is written
            then.
    """
    watch = Stopwatch()
    name, folder = arguments.model_name_or_path, check_new_folder(arguments.output_dir)
    longest, lengths = arguments.max_seq_length, arguments.projected_length
    if longest is None and lengths is None:
        raise ValueError("Nothing is to be changed; give --max_seq_length, --projected_length, or both.")
    config = load_config(name, **arguments.loading())
    if config.model_type != "linformer":
        raise ValueError(f"{name} is a {config.model_type}, not a Linformer; make one with `linformer convert` first.")
    head = head_of_checkpoint(config.architectures)
    model, account = load_whole(head.auto_class, name, **arguments.loading())
    if account["unexpected_keys"]:
        raise ValueError(
            f"{name} holds {min(account['unexpected_keys'])}, which {type(model).__name__} lacks; name the class that "
            "it was saved from in `architectures` of its config.json."
        )
    before = model.config.max_position_embeddings
    resize_model(model, longest, lengths)
    tokenizer = adapted_tokenizer(name, arguments.loading(), model)
    source = local_folder(name, arguments.model_revision, arguments.token)
    with whole_or_nothing(folder):
        if source is not None:
            for note in carry_companions(source, folder, longest):
                logger.info(note)
        about = {
            "pipeline_tag": head.pipeline_tag,
            "dataset": f"none, the weights are those of {Path(name).name}",
            **about_parent(name, source),
            "model": model_facts(model),
        }
        write_results(folder, watch.read(), (arguments,), about)
        save_for_hub(model, tokenizer, folder)
    longest = model.config.max_position_embeddings
    logger.info(f"Saved in {folder}: n = {longest}, k = {model.config.projected_length}.")
    if longest > before:
        logger.info(
            f"Texts of more than {before} tokens are new to it: train it on them, or let its dense parent teach it:"
        )
        logger.info(next_command(dense_parent(source), folder))
    return model


def resize_model(model: LinformerPreTrainedModel, longest: int | None, lengths: list[int] | None) -> None:
    """Change n, k or both of a model in place; None leaves one as it is.

    Raises:
        ValueError: If the numbers do not fit.
    """
    before, is_linear = model.config.max_position_embeddings, model.config.projection_type == "linear"
    if is_linear and lengths is not None and longest is not None and longest < before:
        # before n, so that no slot is averaged with one that goes; more slots come after n, for tokens that stay
        forget_tokens(model, longest)
        change_projected_length(model, smaller_lengths(model.config, lengths))
    if longest is not None:
        model.resize_position_embeddings(longest)
    if lengths is not None:
        change_projected_length(model, lengths[0] if len(lengths) == 1 else lengths)
    if is_linear and longest is not None and longest > before and leaves_unread(model, before):
        logger.warning(
            f"Not every layer has a slot that reads the tokens after the first {before}, before the model is trained "
            "on longer texts. With a larger --projected_length it gets new slots, which read them."
        )


@torch.no_grad()
def forget_tokens(model: LinformerPreTrainedModel, longest: int) -> None:
    """Let no slot read the tokens from `longest` on, so that fewer slots are made of those that are still needed."""
    for projection in projections_in(model):
        projection.weight[..., longest:] = 0


def smaller_lengths(config: LinformerConfig, lengths: list[int]) -> int | list[int]:
    """Return the k of each layer, or that of all layers that share a matrix, where it is to be smaller than it is."""
    trial = copy.copy(config)
    trial.__dict__["projected_length"] = lengths[0] if len(lengths) == 1 else lengths
    if config.projection_sharing == "layerwise":
        return min(max(config.projected_lengths), max(trial.projected_lengths))
    return list(map(min, config.projected_lengths, trial.projected_lengths))


def leaves_unread(model: LinformerPreTrainedModel, before: int) -> bool:
    """Tell whether some layer has no slot for some token behind the first `before`."""
    shared = model.base_model.projection
    groups = [projections_in(attention) for attention in attentions_in(model)] if shared is None else [[shared]]
    return any(unread_tokens(matrices_of(group))[before:].any() for group in groups)


def dense_parent(source: Path | None) -> str:
    """Return the dense encoder that taught a Linformer, or that it was converted from, by its record.

    Not by its card, whose `base_model` may be what the dense encoder was made from. A word stands in the place of one
    that is not known.
    """
    if source is None:
        return "DENSE_ENCODER"
    try:
        given = read_results(source).get("arguments", {})
    except ValueError:
        given = {}
    converted_from = given.get("model_name_or_path") if (source / REPORT).is_file() else None
    return given.get("teacher_name_or_path") or converted_from or "DENSE_ENCODER"

"""Give a saved Linformer another n, k, or both, in a new folder, and keep what it has learned."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoConfig
from transformers.utils import logging

from ..common.files import check_new_folder, whole_or_nothing
from ..common.heads import head_of_checkpoint
from ..common.loading import LoadingArguments, load_whole
from ..common.measurement import Stopwatch
from ..common.records import model_facts, write_results
from ..modeling_linformer import LinformerPreTrainedModel
from ..sharing.hub import save_for_hub
from .checkpoint_conversion import adapted_tokenizer, carry_companions
from .companion_files import about_parent, local_folder
from .projections import change_projected_length


logger = logging.get_logger(__name__)


@dataclass(kw_only=True)
class ResizingArguments(LoadingArguments):
    """Options of a change of n and k."""

    model_name_or_path: str = field(metadata={"help": "The Linformer, a folder or on the Hub."})
    output_dir: str = field(metadata={"help": "The folder of the Linformer with the new size; new or empty."})
    max_seq_length: int | None = field(
        default=None, metadata={"help": "The new n, the longest input in tokens. By default it stays."}
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

    n is changed first, by `resize_position_embeddings`, then k, by `change_projected_length`. With a larger n and the
    same or a larger k, texts that fitted before give nearly the same output as before, and the same if all new slots
    read new tokens.

    Args:
        arguments: What is changed, and where to.

    Returns:
        The model, in evaluation mode.

    Raises:
        ValueError: If the model is no Linformer or is damaged, nothing is to be changed, the numbers do not fit, or
            the output folder is not empty. Nothing is written then.
    """
    watch = Stopwatch()
    name, folder = arguments.model_name_or_path, check_new_folder(arguments.output_dir)
    longest, lengths = arguments.max_seq_length, arguments.projected_length
    if longest is None and lengths is None:
        raise ValueError("Nothing is to be changed; give --max_seq_length, --projected_length, or both.")
    config = AutoConfig.from_pretrained(name, **arguments.loading())
    if config.model_type != "linformer":
        raise ValueError(f"{name} is a {config.model_type}, not a Linformer; make one with `linformer convert` first.")
    head = head_of_checkpoint(config.architectures)
    model, _ = load_whole(head.auto_class, name, **arguments.loading())
    before = model.config.max_position_embeddings
    if longest is not None:
        model.resize_position_embeddings(longest)
    if lengths is not None:
        change_projected_length(model, lengths[0] if len(lengths) == 1 else lengths)
    tokenizer = adapted_tokenizer(name, arguments.loading(), model)
    source = local_folder(name, arguments.model_revision, arguments.token)
    origin = about_parent(name, source)
    with whole_or_nothing(folder):
        if source is not None:
            for note in carry_companions(source, folder, longest):
                logger.info(note)
        about = {
            "pipeline_tag": head.pipeline_tag,
            "dataset": f"none, the weights are those of {Path(name).name}",
            **origin,
            "model": model_facts(model),
        }
        write_results(folder, watch.read(), (arguments,), about)
        save_for_hub(model, tokenizer, folder)
    now = model.config
    logger.info(f"Saved in {folder}: n = {now.max_position_embeddings}, k = {now.projected_length}.")
    if now.max_position_embeddings > before:
        teacher = origin["base_model"] or "DENSE_ENCODER"
        words = ["linformer", "distill", "--do_train", "--do_eval", "--model_name_or_path", str(folder)]
        words += ["--teacher_name_or_path", teacher, "--output_dir", f"{folder}-taught"]
        logger.info(f"Texts of more than {before} tokens are new to it; teach it, or train it on such texts:")
        logger.info(shlex.join(words))
    return model

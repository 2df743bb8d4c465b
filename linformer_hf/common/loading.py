"""How a model and its tokenizer are fetched, what they can read, and whether they fit each other."""

import errno
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class LoadingArguments:
    """How a model and its tokenizer are fetched."""

    model_revision: str = field(
        default="main",
        metadata={"help": "Branch, tag or commit of the model on the Hub.", "aliases": ["--revision"]},
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run the code that a model on the Hub brings along. Read it first."}
    )
    token: str | None = field(
        default=None,
        metadata={"help": "Access token of the Hub. By default HF_TOKEN, or that of `hf auth login`."},
    )

    def loading(self) -> dict[str, Any]:
        """Return the arguments of `from_pretrained`."""
        return {"revision": self.model_revision, "trust_remote_code": self.trust_remote_code, "token": self.token}


def load_config(name: str, **options: Any) -> PreTrainedConfig:
    """Load the configuration of a model, before its weights.

    Args:
        name: A folder, or the name of a model on the Hub.
        **options: For `from_pretrained`.

    Raises:
        ValueError: If there is no such folder, and the Hub does not give it.
    """
    try:
        return AutoConfig.from_pretrained(name, **options)
    except OSError as error:
        if Path(name).is_dir():  # the error names what it lacks
            raise
        raise ValueError(f"{name} is no folder, and not to be had from the Hub: {error}") from error


def load_whole(
    model_class: type, name: str, may_lack_head: bool = False, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model that somebody trained, and refuse one with weights that nobody did.

    Transformers warns where tensors are missing, and draws them at random.

    Args:
        model_class: A model class of Transformers, or an Auto class.
        name: A folder, or the name of a model on the Hub.
        may_lack_head: The head may be missing from the checkpoint.
        **options: For `from_pretrained`.

    Returns:
        The model, and Transformers' account of the loading, with `missing_keys` and `unexpected_keys`.

    Raises:
        ValueError: If the file of weights is damaged, a tensor is missing or of another shape, or one holds NaN or
            infinity.
    """
    try:
        model, loading = model_class.from_pretrained(name, output_loading_info=True, **options)
    except (SafetensorError, RuntimeError, EOFError, UnpicklingError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # as torch reports a file that was cut off
            raise
        if "ignore_mismatched_sizes" in str(error):
            raise ValueError(
                f"The weights of {name} do not have the shapes that its config.json says; one of the two files is of "
                "another model."
            ) from error
        raise ValueError(f"The weights of {name} are damaged: {' '.join(str(error).split())[:300]}.") from error
    body = "" if model.base_model is model else f"{model.base_model_prefix}."
    # Transformers draws a pooler wherever there is none, and only heads for sequences use it
    needed = {key for key in loading["missing_keys"] if f"{body}pooler." not in key}
    if may_lack_head:
        needed = {key for key in needed if key.startswith(body)}
    if needed:
        raise ValueError(f"The weights of {name} lack {len(needed)} tensors, the first of them {min(needed)}.")
    for key, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"The weights of {name} are damaged: {key} holds NaN or infinity.")
    return model, loading


def model_length(model: PreTrainedModel) -> int:
    """Return the longest input of a model in tokens; RoBERTa's table has rows that no token uses."""
    embeddings = getattr(model.base_model, "embeddings", None)
    table = getattr(embeddings, "position_embeddings", None)
    padding_row = getattr(table, "padding_idx", None)
    return model.config.max_position_embeddings - (0 if padding_row is None else padding_row + 1)


def check_length(max_seq_length: int | None, model: PreTrainedModel) -> int:
    """Return the length of an example in tokens: what is asked for, or all that the model reads.

    Raises:
        ValueError: If it is more than the model reads.
    """
    longest = model_length(model)
    if max_seq_length is not None and not 1 <= max_seq_length <= longest:
        raise ValueError(f"--max_seq_length is {max_seq_length}; the model reads 1 to {longest} tokens.")
    return max_seq_length or longest


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, name: str) -> None:
    """Check that the model has an embedding for each token.

    Raises:
        ValueError: If the tokenizer has more tokens than the embedding table has rows.
    """
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, the embedding table of {name} only {rows} rows; take the "
            "model's own tokenizer."
        )


def declare_loss_scaling(model: PreTrainedModel) -> None:
    """Tell the Trainer whether a model divides its loss by the items of the whole step.

    A model that takes any keyword does not yet do so. The Trainer believes it does, and would make the gradients of
    BERT and RoBERTa too large by the accumulation steps and processes.
    """
    model.accepts_loss_kwargs = "num_items_in_batch" in inspect.signature(model.forward).parameters

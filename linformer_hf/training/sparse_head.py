"""A head for masked words that computes the labelled tokens alone during a step, and saves nothing of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedConfig


@contextmanager
def labelled_tokens_only(config: PreTrainedConfig) -> Iterator[None]:
    """Let a Linformer's head for masked words compute the labelled tokens alone: the same loss for less memory.

    It holds for a step, so that no checkpoint is saved with a configuration that the user has not asked for.

    Args:
        config: Of the model; one without `sparse_prediction` is left as it is.
    """
    before = getattr(config, "sparse_prediction", None)
    if before is None:
        yield
        return
    config.sparse_prediction = True
    try:
        yield
    finally:
        config.sparse_prediction = before

"""Batches of random texts for a benchmark, with padding and labels."""

import torch


LABELLED_SHARE = 0.15
FIRST_WORD = 3  # smaller ids are special tokens


def make_inputs(
    batch_size: int,
    num_tokens: int,
    vocab_size: int,
    padded_share: float,
    with_labels: bool,
    generator: torch.Generator,
) -> dict[str, torch.Tensor]:
    """Draw a batch of texts.

    Args:
        batch_size: Texts.
        num_tokens: N, the length of the longest.
        vocab_size: Number of words.
        padded_share: Share of the batch that is padding behind shorter texts.
        with_labels: Label some of the tokens.
        generator: The generator of the random numbers.

    Returns:
        `input_ids`, `(B, N)`, and where asked for `attention_mask` and `labels` of that shape.
    """
    shape = (batch_size, num_tokens)
    inputs = {"input_ids": torch.randint(FIRST_WORD, vocab_size, shape, generator=generator)}
    if padded_share:
        inputs["attention_mask"] = padding_mask(batch_size, num_tokens, padded_share)
    if with_labels:
        is_labelled = torch.rand(shape, generator=generator) < LABELLED_SHARE
        is_labelled[-1, 0] = True  # a tiny batch has at least this label
        if padded_share:
            is_labelled &= inputs["attention_mask"] != 0
        inputs["labels"] = inputs["input_ids"].masked_fill(~is_labelled, -100)
    return inputs


def padding_mask(batch_size: int, num_tokens: int, padded_share: float) -> torch.Tensor:
    """Return the mask of texts of many lengths, the last of them the longest, of which a given share is padding.

    The lengths of the other texts are evenly spread numbers between 0 and 1, raised to the power that gives them the
    mean length that the share leaves for them.

    Returns:
        1 for a real token and 0 for padding, `(B, N)`.

    Raises:
        ValueError: If the share is not in [0, 1), or the batch has too few texts for so much padding.
    """
    if not 0 <= padded_share < 1:
        raise ValueError(f"--padded_share is {padded_share}; it must be 0 or more, and below 1.")
    others = batch_size - 1
    remaining = batch_size * (1 - padded_share) - 1
    if padded_share and remaining <= 0:
        raise ValueError(
            f"--padded_share is {padded_share}, but of {batch_size} texts of up to {num_tokens} tokens less can be "
            "padding, as the longest has none; take more texts a batch."
        )
    even = (torch.arange(others, dtype=torch.float64) + 0.5) / others
    spread = even ** (others / remaining - 1 if others else 0)
    lengths = torch.cat([(num_tokens * spread).round().clamp(min=1), torch.tensor([num_tokens])])
    return (torch.arange(num_tokens) < lengths[:, None]).long()

"""Attention maps of padded texts, and the same without padding, to compare with numpy."""

import torch


NUM_TOKENS = 10
MASK = torch.tensor([[1] * 10, [1] * 7 + [0] * 3, [0] * 4 + [1] * 6])


def random_maps(columns=NUM_TOKENS):
    """Maps as attention makes them: rows sum to one, and dense ones do not attend to padding."""
    scores = 2 * torch.randn(3, 2, NUM_TOKENS, columns, generator=torch.Generator().manual_seed(0)).double()
    if columns == NUM_TOKENS:
        scores = scores.masked_fill((MASK == 0)[:, None, None], -torch.inf)
    return scores.softmax(-1)


def cut(maps, row, columns=True):
    """The maps of one text without its padding, as arrays."""
    kept = MASK[row].bool().numpy()
    found = maps[row].numpy()[:, kept]
    return found[:, :, kept] if columns else found

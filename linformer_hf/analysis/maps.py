"""Attention maps of an encoder over tokens or slots, those of a Linformer between tokens, and how far maps are apart.

Letters: B batch, H heads, N tokens, K columns of a map (N of a dense model, slots of a Linformer).
"""

import torch
from transformers import PreTrainedModel

from ..modeling_linformer import LinformerModel, token_positions


ROUNDING = 0.05  # of a sum of many shares in half precision


@torch.no_grad()
def attention_maps(
    model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Run an encoder and return its attention maps.

    Args:
        model: An encoder in evaluation mode, loaded with `attn_implementation="eager"`.
        input_ids: Token ids, `(B, N)`.
        attention_mask: 1 for a real token and 0 for padding, `(B, N)`.

    Returns:
        A map for each layer: `(B, H, N, N)`, or `(B, H, N, K)` of a Linformer. Rows sum to one.

    Raises:
        ValueError: If the model returns no maps, maps that do not cover all tokens, or scores before the softmax.
    """
    maps = model(input_ids=input_ids, attention_mask=attention_mask, output_attentions=True).attentions
    name, num_tokens = model.config.model_type, input_ids.shape[1]
    if not maps or any(layer is None for layer in maps):
        raise ValueError(
            f"{name} returns no attention maps; take a model that supports `attn_implementation='eager'`."
        )
    for layer in maps:
        if layer.dim() != 4 or layer.shape[2] != num_tokens or (layer.shape[3] != num_tokens and name != "linformer"):
            raise ValueError(
                f"{name} returns attention maps of shape {tuple(layer.shape)} for {num_tokens} tokens, not tokens x "
                "tokens; take a model that attends from every token to every token."
            )
        sums = layer.sum(-1).transpose(1, 2)[attention_mask != 0]
        if not (sums - 1).abs().max() < ROUNDING:
            raise ValueError(
                f"The rows of {name}'s attention maps do not sum to one: it returns scores before the softmax, or "
                "is in training mode; call `model.eval()`, or take another model."
            )
    return maps


def erase_padding(maps: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Set the rows of padding to zero, which adds only singular values of zero.

    The columns of padding are zero already, as no token attends to it.

    Args:
        maps: `(B, H, N, K)`.
        attention_mask: 1 for a real token and 0 for padding, `(B, N)`.
    """
    return maps.masked_fill((attention_mask == 0)[:, None, :, None], 0.0)


@torch.no_grad()
def token_maps(
    model: LinformerModel, maps: tuple[torch.Tensor, ...], attention_mask: torch.Tensor
) -> list[torch.Tensor]:
    """Return the attention of a Linformer between tokens: its maps times F, which compresses the values.

    Args:
        model: A Linformer without a head, of type `"linear"` or `"mean_pool"`.
        maps: As from `attention_maps`, `(B, H, N, K)` per layer.
        attention_mask: 1 for a real token and 0 for padding, `(B, N)`.

    Returns:
        `(B, H, N, N)` per layer, to compare with the maps of a dense model. Rows need not sum to one.

    Raises:
        ValueError: If the values are not compressed by a matrix.
    """
    config = model.config
    if config.projection_type not in ("linear", "mean_pool"):
        raise ValueError(
            f"`projection_type` is {config.projection_type!r}, which compresses without a matrix, so there is no map "
            "between tokens to compare; 'linear' and 'mean_pool' have one."
        )
    batch_size, num_tokens = attention_mask.shape
    positions = token_positions(attention_mask, config.max_position_embeddings)
    tokens = torch.eye(num_tokens, device=maps[0].device, dtype=maps[0].dtype).expand(batch_size, -1, -1)
    if config.projection_type == "linear" and config.projection_sharing == "none":
        tokens = tokens[:, None].expand(-1, config.num_attention_heads, -1, -1)
    shared_weight = None if model.projection is None else model.projection()
    found = []
    for layer, slots_read in zip(model.layers, maps):
        _, weight = layer.attention.projection_weights(shared_weight)
        compressed = layer.attention.compress(tokens, weight, positions)
        found.append(slots_read @ (compressed if compressed.dim() == 4 else compressed[:, None]))
    return found


def relative_distance(
    maps: torch.Tensor, reference: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the Frobenius norm of the difference of two maps, over that of the second.

    Args:
        maps: `(B, H, N, N)`.
        reference: `(B, H, N, N)`.
        attention_mask: 1 for a real token and 0 for padding, `(B, N)`, which is left out. None means that there
            is none.

    Returns:
        `(B, H)`; the best that a map of rank k can reach is `rank_k_error` of the reference.
    """
    if attention_mask is not None:
        maps, reference = erase_padding(maps, attention_mask), erase_padding(reference, attention_mask)
    return torch.linalg.matrix_norm(maps - reference) / torch.linalg.matrix_norm(reference)

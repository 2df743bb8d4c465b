# Copyright 2026 The linformer_hf authors.
# Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0
"""The Linformer encoder and its heads: self-attention with linear cost (Wang et al. 2020, arXiv 2006.04768).

The block is RoBERTa's, with these differences:

- keys and values are compressed from N tokens to K slots before their linear maps:
  softmax(Q ((E X) W_K + b_K)^T / sqrt(D)) ((F X) W_V + b_V);
- an input of N < n tokens uses the first N columns of E and F, so its cost is proportional to N;
- real tokens have the positions 0, 1, 2, ... and padding is multiplied by zero in E X and F X, so the attention needs
  no mask over tokens;
- for inputs of fewer than n tokens, a term is added to the attention scores so that slots without tokens get no
  attention (`log_shares`);
- outside the attention, the T real tokens of a padded batch are packed into one sequence, `(1, T, M)`.

Letters: B batch, H heads, N tokens, K slots, D width of one head, M model width (H * D), I width of the MLP, W tokens
of a window, C channels, V vocabulary, L labels, T real tokens of a padded batch. n and k are the paper's: the longest
input in tokens, and the number of slots that it is compressed into.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple, logging
from transformers.utils.output_capturing import capture_outputs

from .configuration_linformer import PROJECTION_INITS, LinformerConfig


logger = logging.get_logger(__name__)

Weight = torch.Tensor | None  # of a projection; None for projection types without weights
Positions = torch.Tensor | None  # from `token_positions`; None if there is no padding
Lengths = torch.Tensor | None  # real tokens of each text, `(B, 1)`; None if there is no padding

# Added to the attention score of a slot without tokens. exp(-1e4) is zero in every dtype, and float16 can represent
# the sum, as it could not with the smallest float32.
EMPTY_SLOT = -1e4

# Amplitude of sinusoidal positions, in standard deviations of the word embeddings. The LayerNorm after their sum
# removes the common scale, so only this ratio matters; with 3, models learn to use context in fewer steps than with 1.
POSITION_AMPLITUDE = 3.0

# Norm of the rows of mimetic query weights, and norm of the noise by which key rows differ, relative to it. Attention
# scores then have the same mean and standard deviation as with the original method, a truncated SVD of
# 0.7 (I + noise), which takes a hundred times as long.
MIMETIC_NORM = 1.2
MIMETIC_NOISE = 0.65

UNSUPPORTED_ARGUMENTS = {
    "is_causal": "every slot mixes all positions, so a token would see the future. Use the model as an encoder",
    "past_key_values": "a new token changes every slot, so nothing can be cached. Use the model as an encoder",
    "encoder_hidden_states": "there is no cross-attention. Encode both texts as one pair",
    "position_ids": "a token's position is also its column of the projections. Mark padding in `attention_mask`; "
    "positions then count the real tokens",
}


def is_tracing(tensor: torch.Tensor) -> bool:
    """Tell whether a graph is being recorded; its shapes must not depend on how many tokens are real."""
    is_captured = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    return is_captured or tensor.is_meta or torch.compiler.is_compiling() or torch.jit.is_tracing()


def token_positions(attention_mask: torch.Tensor, max_positions: int) -> torch.Tensor:
    """Number the real tokens of each text 0, 1, 2, ...; padding gets n, the number after the last position.

    Args:
        attention_mask: 0 for padding, any other number for a real token, `(B, N)`.
        max_positions: The longest input, n.

    Returns:
        Integers, `(B, N)`.
    """
    is_token = attention_mask != 0
    return (is_token.long().cumsum(-1) - 1).masked_fill(~is_token, max_positions)


class Packing(NamedTuple):
    """Where the T real tokens of a batch stand among its B * N places."""

    rows: torch.Tensor  # row of each token in the batch flattened to `(B * N, C)`; `(T,)`, no row twice
    shape: tuple[int, int]  # (B, N)


def pack_positions(
    positions: torch.Tensor, lengths: torch.Tensor, max_positions: int
) -> tuple[Packing, Packing, torch.Tensor]:
    """Find the real tokens in a batch as it is given, and in the same batch with all padding moved to the right.

    The attention works on the second, which is cut to the length of its longest text.

    Args:
        positions: From `token_positions`, `(B, N)`.
        lengths: Real tokens of each text, `(B, 1)`.
        max_positions: The longest input, n.

    Returns:
        The packing of the given batch; the packing of the other; and the positions in the other, `(B, longest text)`.
    """
    batch_size, num_tokens = positions.shape
    longest = max(int(lengths.max()), 1)
    rows = (positions < max_positions).flatten().nonzero()[:, 0]
    moved_rows = rows // num_tokens * longest + positions.flatten()[rows]
    columns = torch.arange(longest, device=positions.device)
    moved_positions = torch.where(columns < lengths, columns, max_positions)
    return Packing(rows, (batch_size, num_tokens)), Packing(moved_rows, (batch_size, longest)), moved_positions


def pack(states: torch.Tensor, packing: Packing | None) -> torch.Tensor:
    """Concatenate the real tokens of all texts, `(B, N, C)` to `(1, T, C)`; without a packing return `states`."""
    if packing is None:
        return states
    # unlike that of `states[rows]`, the gradient of index_select does not sort the rows first
    return states.flatten(0, 1).index_select(0, packing.rows.to(states.device))[None]


def unpack(states: torch.Tensor, packing: Packing | None, batch: torch.Tensor | None = None) -> torch.Tensor:
    """Undo `pack`, `(1, T, C)` to `(B, N, C)`; padding is filled from `batch`, `(B, N, C)`, or with zeros."""
    if packing is None:
        return states
    batch = states.new_zeros(*packing.shape, states.shape[-1]) if batch is None else batch.to(states)
    rows = packing.rows.to(states.device)  # a layer may be on another device than the embeddings
    return batch.flatten(0, 1).index_copy(0, rows, states[0]).unflatten(0, packing.shape)


def project_tokens(states: torch.Tensor, weight: torch.Tensor, positions: Positions) -> torch.Tensor:
    """Compute E X (or F X): each slot is a weighted sum of the tokens (paper, equation 7).

    Args:
        states: X, `(B, N, C)` with one matrix for all heads, or `(B, H, N, D)` with one matrix per head.
        weight: E, `(K, n)` or `(H, K, n)`.
        positions: From `token_positions`, `(B, N)`: the column of E that each token uses. None if there is no padding.

    Returns:
        `(B, K, C)`, or `(B, H, K, D)`.
    """
    if positions is None:
        # expanded to the batch, because for a broadcast matrix torch would copy all states and save the copy
        return weight[..., : states.shape[-2]].expand(*states.shape[:-2], -1, -1) @ states
    columns = F.pad(weight, (0, 1)).flatten(0, -2).T  # (n + 1, [H *] K); padding, position n, gets zeros
    columns = F.embedding(positions, columns).unflatten(-1, weight.shape[:-1])  # (B, N, [H,] K)
    return columns.movedim(1, -1) @ states


def pool_windows(
    states: torch.Tensor, projection_type: str, window: int, kernel: Weight, positions: Positions
) -> torch.Tensor:
    """Compress each window of W tokens into one slot (paper, section 4, general projections).

    Only real tokens count: the mean of a partly filled window is over its real tokens, and an empty window gives
    zeros.

    Args:
        states: `(B, N, C)`.
        projection_type: `"mean_pool"`, `"max_pool"` or `"conv"`.
        window: W, in tokens.
        kernel: Weights of the depthwise convolution, `(C, W)`; None for pooling.
        positions: From `token_positions`, `(B, N)`. None if there is no padding.

    Returns:
        `(B, ceil(N / W), C)`.
    """
    batch_size, num_tokens, channels = states.shape
    num_slots = (num_tokens + window - 1) // window
    num_rows = num_slots * window
    fill_value = torch.finfo(states.dtype).min if projection_type == "max_pool" else 0.0
    if positions is None:
        rows = F.pad(states, (0, 0, 0, num_rows - num_tokens), value=fill_value)
        lengths = torch.full((batch_size, 1), num_tokens, device=states.device)
    else:
        # each token moves to the row of its position; padding moves to one extra row, which is then cut off
        targets = positions.clamp(max=num_rows)[..., None].expand_as(states)
        rows = states.new_full((batch_size, num_rows + 1, channels), fill_value).scatter(1, targets, states)[:, :-1]
        lengths = (positions < num_rows).sum(-1, keepdim=True)
    rows = rows.reshape(batch_size, -1, window, channels)
    if projection_type == "conv":
        return torch.einsum("bswc,cw->bsc", rows, kernel.to(rows.dtype))
    starts = torch.arange(num_slots, device=states.device) * window
    window_lengths = (lengths - starts).clamp(0, window)[..., None]  # real tokens of each window, (B, K, 1)
    if projection_type == "mean_pool":
        total = rows.sum(2, dtype=torch.promote_types(rows.dtype, torch.float32))  # float16 would overflow
        return (total / window_lengths.clamp(min=1)).to(rows.dtype)
    return rows.amax(2).masked_fill(window_lengths == 0, 0.0)


def is_short(num_tokens: int, lengths: Lengths, weight: torch.Tensor) -> bool:
    """Tell whether texts may have fewer than n tokens; a graph that is exported must be right for such texts."""
    is_exporting = torch.compiler.is_exporting() or torch.jit.is_tracing()
    return lengths is not None or is_exporting or num_tokens < weight.shape[-1]


def log_shares(weight: torch.Tensor, num_tokens: int, lengths: Lengths) -> torch.Tensor:
    """Return what is added to the attention scores of the slots when a text has fewer than n tokens.

    A text of N tokens uses the first N columns of E. The share of a slot is the sum of its squared weights in these
    columns, divided by the sum over all n columns; the log of the share is added to the scores of the slot. A slot
    with no weight in these columns would have only the key bias as its key, and get attention nevertheless; its share
    is 0, which removes it from the softmax. So a Linformer with identity projections equals a dense encoder at every
    length. At N = n all shares are 1 and nothing is added; if all slots have the same share, adding it changes
    nothing either, since a constant cancels in the softmax.

    No gradient flows through the shares, because fused kernels accept no mask that requires one.

    Args:
        weight: E, `(K, n)` or `(H, K, n)`.
        num_tokens: N.
        lengths: Real tokens of each text, `(B, 1)`. None if each text has N.

    Returns:
        `(B, 1, 1, K)` or `(B, H, 1, K)`, with B = 1 if `lengths` is None; in float32 or float64. For a share of 0 it
        is `EMPTY_SLOT`.
    """
    weight = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    # a row of zeros has the share 0, not 0 / 0
    norms = torch.linalg.vector_norm(weight, dim=-1).clamp(min=torch.finfo(weight.dtype).tiny)
    if lengths is None:
        shares = (torch.linalg.vector_norm(weight[..., :num_tokens], dim=-1) / norms).square()[None]
    else:
        is_token = torch.arange(num_tokens, device=weight.device) < lengths.to(weight.device).clamp(min=1)
        squares = (weight[..., :num_tokens] / norms[..., None]).square()
        shares = (is_token.to(squares.dtype) @ squares.transpose(-1, -2)).to(squares.dtype)  # ([H,] B, K)
        shares = shares if weight.dim() == 2 else shares.transpose(0, 1)
    scores = shares.log().clamp(min=EMPTY_SLOT)
    return scores[:, None, None] if weight.dim() == 2 else scores[:, :, None]


def used_slots(weight: torch.Tensor, num_tokens: int, lengths: Lengths) -> slice:
    """Return the slots up to the last one that has tokens in any text, at least one; the others need no computing.

    These are all slots where the weight cannot be read: while a graph is recorded, inside `torch.vmap`, as a fake
    tensor, and on other devices than the CPU, where reading would wait for all queued work.

    Args:
        weight: E, `(K, n)` or `(H, K, n)`.
        num_tokens: N.
        lengths: Real tokens of each text, `(B, 1)`. None if each text has N.
    """
    if not weight.is_cpu or is_tracing(weight):
        return slice(None)
    try:
        longest = num_tokens if lengths is None else max(1, int(lengths.max()))
        largest = weight.detach()[..., :longest].abs().amax(-1)
        reads = (largest if weight.dim() == 2 else largest.amax(0)).tolist()
    except RuntimeError:
        return slice(None)
    return slice(max((number for number, weight in enumerate(reads, start=1) if weight), default=1))


def is_zero(scores: torch.Tensor) -> bool:
    """Tell whether nothing need be added to attention scores, which is faster; False where they cannot be read."""
    try:
        return scores.is_cpu and not is_tracing(scores) and not scores.min()  # none is above 0
    except RuntimeError:
        return False


def empty_window_scores(lengths: torch.Tensor, num_tokens: int, window: int) -> torch.Tensor:
    """Return what is added to the attention scores of windows to remove those without real tokens from the softmax.

    The first window always stays, so that a text that is all padding has a slot to attend to.

    Args:
        lengths: Real tokens of each text, `(B, 1)`.
        num_tokens: N.
        window: W, in tokens.

    Returns:
        0 for windows with real tokens and `EMPTY_SLOT` for the others, `(B, 1, 1, ceil(N / W))`, in float32.
    """
    starts = torch.arange(0, num_tokens, window, device=lengths.device)
    scores = torch.zeros_like(starts, dtype=torch.float32).expand(lengths.shape[0], -1)
    return scores.masked_fill(starts >= lengths.clamp(min=1), EMPTY_SLOT)[:, None, None]


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention step by step; the only implementation that returns attention maps.

    The signature is that of all attention functions of transformers.

    Args:
        module: The attention, for its training mode.
        query: `(B, H, N, D)`.
        key: `(B, H, K, D)`.
        value: `(B, H, K, D)`.
        attention_mask: Added to the scores; broadcasts to `(B, H, N, K)`.
        scaling: Factor of the scores.
        dropout: Probability of dropping an attention weight in training.
        **kwargs: Not used.

    Returns:
        The output, `(B, N, H, D)`, and the attention maps, `(B, H, N, K)`.
    """
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = F.dropout(scores.softmax(-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def has_projection_weights(config: LinformerConfig) -> bool:
    """Tell whether the projections have weights; pooling has none."""
    return config.projection_type in ("linear", "conv")


class LinformerProjection(nn.Module):
    """E or F of the paper: holds the weight that compresses tokens into slots.

    A call returns the weight, not a product. So all layers can share one matrix, and hooks on the module (for
    offloading or sharding) still run before the weight is read.
    """

    def __init__(self, config: LinformerConfig, projected_length: int) -> None:
        super().__init__()
        if config.projection_type == "conv":
            shape = (config.hidden_size, config.max_position_embeddings // projected_length)
        elif config.projection_sharing == "none":
            shape = (config.num_attention_heads, projected_length, config.max_position_embeddings)
        else:
            shape = (projected_length, config.max_position_embeddings)
        self.is_matrix = config.projection_type == "linear"
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self) -> torch.Tensor:
        """Return the weight: `(k, n)`, `(H, k, n)` with one matrix per head, or `(M, W)` for a convolution."""
        # FSDP2 turns the module into a subclass, and frees the gathered weight as soon as forward returns
        return self.weight if type(self) is LinformerProjection else self.weight.clone()


class LinformerEmbeddings(nn.Module):
    """Sum of word, position and token-type embeddings, followed by a LayerNorm."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        positions: torch.Tensor | None,
    ) -> torch.Tensor:
        embeddings = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        num_tokens, num_positions = embeddings.shape[1], self.position_embeddings.num_embeddings
        if token_type_ids is None:
            token_type_ids = torch.zeros((1, 1), dtype=torch.long, device=embeddings.device)
        if positions is None:
            position_ids = torch.arange(num_tokens, device=embeddings.device)[None]
        else:
            # not multiplied by zero, since NaN times zero is NaN: padding must not reach real tokens
            embeddings = embeddings.masked_fill((positions == num_positions)[..., None], 0.0)
            position_ids = positions.clamp(max=num_positions - 1)
        embeddings = embeddings + self.token_type_embeddings(token_type_ids) + self.position_embeddings(position_ids)
        return self.dropout(self.layer_norm(embeddings))


class LinformerAttention(nn.Module):
    """Multi-head attention of N queries to K compressed keys and values."""

    def __init__(self, config: LinformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.dropout = config.attention_probs_dropout_prob
        self.is_causal = False  # without it, the attention functions of transformers assume True
        self.projected_length = config.projected_lengths[layer_idx]
        self.window = config.max_position_embeddings // self.projected_length

        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        learned = has_projection_weights(config)
        if learned and config.projection_sharing in ("none", "headwise"):
            self.key_projection = LinformerProjection(config, self.projected_length)
            self.value_projection = LinformerProjection(config, self.projected_length)
        elif learned and config.projection_sharing == "key_value":
            self.projection = LinformerProjection(config, self.projected_length)

    def forward(
        self,
        hidden_states: torch.Tensor,
        positions: torch.Tensor | None = None,
        lengths: torch.Tensor | None = None,
        shared_weight: torch.Tensor | None = None,
        shared_scores: torch.Tensor | None = None,
        keeps_slots: bool = True,
        packing: Packing | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from every token to the slots.

        Args:
            hidden_states: `(B, N, M)`, or `(1, T, M)` with a packing. Rows of padding must be finite.
            positions: From `token_positions`, `(B, N)`. None if there is no padding, or if all its rows are zero.
            lengths: Real tokens of each text, `(B, 1)`. None if there is no padding.
            shared_weight: The projection of all layers, with layerwise sharing.
            shared_scores: `log_shares` of that projection, or None to add nothing.
            keeps_slots: Whether slots after the last one with tokens are computed, as in attention maps of k columns.
            packing: Where the T tokens of `hidden_states` belong in the batch, `(B, N)`, that `positions` and
                `lengths` describe. None if `hidden_states` is the batch itself.

        Returns:
            The output, with the shape of `hidden_states`, and the attention maps, `(B, H, N, K)`, or None from a
            fused kernel.
        """
        query_states = self.split_heads(unpack(self.query(hidden_states), packing))
        key_weight, value_weight = self.projection_weights(shared_weight)
        num_tokens, is_matrix = query_states.shape[2], self.config.projection_type == "linear"
        if is_matrix and shared_weight is None and not keeps_slots and is_short(num_tokens, lengths, key_weight):
            used, is_same = used_slots(key_weight, num_tokens, lengths), value_weight is key_weight
            key_weight = key_weight[..., used, :]
            value_weight = key_weight if is_same else value_weight[..., used, :]
        scores = self.slot_scores(num_tokens, key_weight, lengths, shared_scores)
        mask = None if scores is None or is_zero(scores) else scores.to(query_states)
        # with fewer than K tokens it is cheaper to map first; an exported graph has one order for all lengths
        has_fewer = is_matrix and not torch.compiler.is_exporting() and num_tokens < key_weight.shape[-2]
        if self.config.projection_sharing == "none" or has_fewer:
            key_states = self.map_then_compress(self.key, hidden_states, key_weight, positions, packing)
            value_states = self.map_then_compress(self.value, hidden_states, value_weight, positions, packing)
        else:
            texts = unpack(hidden_states, packing)
            key_rows = value_rows = self.compress(texts, key_weight, positions)
            if value_weight is not key_weight:
                value_rows = self.compress(texts, value_weight, positions)
            key_states = self.split_heads(self.key(key_rows))
            value_states = self.split_heads(self.value(value_rows))

        # fused kernels do not return attention maps
        implementation = "eager" if kwargs.get("output_attentions") else self.choose_implementation(query_states, mask)
        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        attention_output, attention_weights = attention_interface(
            self,
            query_states,
            key_states,
            value_states,
            mask,
            dropout=self.dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.output(pack(attention_output.flatten(2), packing)), attention_weights

    def split_heads(self, states: torch.Tensor) -> torch.Tensor:
        """Turn `(B, N, M)` into `(B, H, N, D)`, as a view."""
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def projection_weights(self, shared_weight: Weight) -> tuple[Weight, Weight]:
        """Return E and F of this layer: the same tensor if E = F, or None and None for pooling."""
        if not has_projection_weights(self.config):
            return None, None
        if self.config.projection_sharing in ("none", "headwise"):
            return self.key_projection(), self.value_projection()
        weight = self.projection() if self.config.projection_sharing == "key_value" else shared_weight
        if self.config.projection_type == "linear":
            weight = weight[: self.projected_length]
        return weight, weight

    def compress(self, states: torch.Tensor, weight: Weight, positions: Positions) -> torch.Tensor:
        """Compress tokens into slots by `project_tokens` or `pool_windows`."""
        if self.config.projection_type == "linear":
            return project_tokens(states, weight, positions)
        return pool_windows(states, self.config.projection_type, self.window, weight, positions)

    def map_then_compress(
        self,
        linear: nn.Module,
        hidden_states: torch.Tensor,
        weight: Weight,
        positions: Positions,
        packing: Packing | None,
    ) -> torch.Tensor:
        """Apply the key or value map to the tokens, then compress the result to `(B, H, K, D)`.

        This costs less than compressing first if each head has its own projection, or if N < K. The bias is added
        after compression, so that the result is the same in both orders.
        """
        if type(linear) is nn.Linear and linear.bias.device == hidden_states.device:
            mapped = linear(hidden_states)
            bias = linear.bias.to(mapped.dtype)
        else:
            # the bias is what the module returns for a row of zeros: an adapter has other parameters, and a hook may
            # have to load them first
            mapped = linear(F.pad(hidden_states.flatten(0, 1), (0, 0, 0, 1)))
            mapped, bias = mapped[:-1].unflatten(0, hidden_states.shape[:2]), mapped[-1]
        states = unpack(mapped - bias, packing)
        if self.config.projection_type == "linear" and self.config.projection_sharing == "none":
            return self.compress(self.split_heads(states), weight, positions) + self.split_heads(bias[None, None])
        return self.split_heads(self.compress(states, weight, positions) + bias)

    def slot_scores(
        self, num_tokens: int, key_weight: Weight, lengths: Lengths, shared_scores: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return what is added to the attention scores of the slots, `(B, 1 or H, 1, K)`, or None for nothing."""
        if self.config.projection_type != "linear":
            return None if lengths is None else empty_window_scores(lengths, num_tokens, self.window)
        if self.config.projection_sharing == "layerwise":
            return None if shared_scores is None else shared_scores[..., : self.projected_length]
        return log_shares(key_weight, num_tokens, lengths) if is_short(num_tokens, lengths, key_weight) else None

    def choose_implementation(self, query_states: torch.Tensor, mask: torch.Tensor | None) -> str:
        """Name the attention implementation for a call: the configured one, or SDPA if that one cannot compute it."""
        name = self.config._attn_implementation
        if name == "flex_attention" and query_states.device.type == "cpu":
            # as torch 2.13 compiles it, it reads past its memory with an additive mask or with fewer than 16 slots
            logger.warning_once("'flex_attention' is unsafe on a CPU; calls there compute with 'sdpa'.")
            return "sdpa"
        # flash attention accepts no additive mask, and flex attention in transformers uses the first head's for all
        if mask is not None and ("flash" in name or name == "flex_attention"):
            logger.warning_once(
                f"{name!r} cannot mask the slots without tokens of a short or padded input; such calls compute with "
                "'sdpa'. Inputs of `max_position_embeddings` tokens without padding are not affected."
            )
            return "sdpa"
        return name


class LinformerMLP(nn.Module):
    """Two linear maps with an activation between them, for each token separately.

    In training the backward pass recomputes the activation instead of saving it, since it is the largest tensor that a
    layer would save. So hooks on the activation run twice per step, and `torch.func` transforms work in evaluation
    mode only.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if not self.recomputes_activation(hidden_states):
            return self.output(self.activation(self.intermediate(hidden_states)))
        # passed by argument, so that the recomputation uses these weights even if the module's have been replaced
        weights = dict(self.output.named_parameters())
        return checkpoint(self.activate_and_map, self.intermediate(hidden_states), weights, use_reentrant=False)

    def activate_and_map(self, inner: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
        """Apply the activation to `(B, N, I)`, and map it to `(B, N, M)` with the given weights of `output`."""
        return functional_call(self.output, weights, (self.activation(inner),))

    def recomputes_activation(self, hidden_states: torch.Tensor) -> bool:
        """Tell whether the backward pass recomputes the activation: in training, if it would be saved otherwise."""
        if not (self.training and torch.is_grad_enabled()) or is_tracing(hidden_states):
            return False
        weights = list(self.output.parameters())
        # sharded weights, which are no plain parameters, are readable only while the module's own forward runs
        is_plain = all(type(weight) in (nn.Parameter, torch.Tensor) for weight in weights)
        return is_plain and any(weight.requires_grad for weight in weights)


class LinformerLayer(GradientCheckpointingLayer):
    """RoBERTa's block: attention and MLP, each with a residual connection and a LayerNorm after it."""

    def __init__(self, config: LinformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.attention = LinformerAttention(config, layer_idx)
        self.attention_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = LinformerMLP(config)
        self.mlp_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> torch.Tensor:
        hidden_states = hidden_states + self.dropout(self.attention(hidden_states, **kwargs)[0])
        hidden_states = self.attention_layer_norm(hidden_states)
        return self.mlp_layer_norm(hidden_states + self.dropout(self.mlp(hidden_states)))


def window_averages(slots: int, tokens: int) -> torch.Tensor:
    """Return the matrix whose slots average windows of n / k tokens, `(k, n)`.

    If k does not divide n, a token at the border of two windows counts in each by the part that lies in it.
    """
    edges = torch.arange(slots + 1, dtype=torch.float64) * tokens / slots
    left, right, token = edges[:-1, None], edges[1:, None], torch.arange(tokens)
    overlap = (torch.minimum(right, token + 1) - torch.maximum(left, token)).clamp(min=0)
    return (overlap * slots / tokens).float()


def folded_identity(slots: int, tokens: int) -> torch.Tensor:
    """Return the matrix that puts token j into slot j mod k, `(k, n)`; up to k tokens, this is full attention.

    In each slot, the weights of all tokens after the first k together have a norm of about 1, like the weight of the
    slot's first token alone.
    """
    folded = torch.eye(slots)[:, torch.arange(tokens) % slots]
    folded[:, slots:] *= max(tokens / slots - 1, 1) ** -0.5
    return folded


def projection_init(config: LinformerConfig) -> str:
    """Return how projections are initialized: as configured, or if that is None, the default of their type."""
    if config.projection_init is not None:
        return config.projection_init
    is_shared = config.projection_type == "linear" and config.projection_sharing == "layerwise"
    if is_shared and len(set(config.projected_lengths)) > 1:
        logger.warning_once(
            "Layers with different `projected_length` share one matrix and use its first rows, so it is initialized "
            "as 'folded': each slot sums tokens that are far apart. With `projection_sharing` = 'key_value' each "
            "layer is initialized as 'window', with which models learn more."
        )
        return "folded"
    return PROJECTION_INITS[config.projection_type][0]


def sinusoidal_positions(num_positions: int, width: int, initializer_range: float) -> torch.Tensor:
    """Return a position table of sines and cosines (Vaswani et al. 2017, section 3.5), `(num_positions, width)`.

    Args:
        num_positions: Rows.
        width: Columns.
        initializer_range: Standard deviation of the word embeddings that the table is added to.
    """
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * rates
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]
    return POSITION_AMPLITUDE * initializer_range * table


def mimetic_query_key(num_heads: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw query and key weights, each `(M, M)`, such that tokens attend to similar tokens, as in trained models.

    The query and key rows of a head are almost the same orthonormal basis of a random subspace, so the product of
    both maps is close to a projection onto it (Trockman and Kolter 2023, arXiv 2305.09828).

    Args:
        num_heads: H.
        width: M.
    """
    # float32 by name, because the default dtype may be a half precision, for which torch has no QR decomposition
    draws = torch.randn(num_heads, width, width // num_heads, dtype=torch.float32)
    bases = torch.linalg.qr(draws)[0].transpose(1, 2)
    noise = torch.randn(bases.shape, dtype=torch.float32) * width**-0.5
    query = MIMETIC_NORM * bases
    key = MIMETIC_NORM * (bases + MIMETIC_NOISE * noise)
    return query.flatten(0, 1), key.flatten(0, 1)


def resized_fields(config: LinformerConfig, max_positions: int) -> dict[str, int | list[int]]:
    """Return the configuration fields that a new n changes.

    Raises:
        ValueError: If the new n is not a whole number of windows.
    """
    if config.projection_type == "linear":
        return {"max_position_embeddings": max_positions}
    windows = [config.max_position_embeddings // length for length in config.projected_lengths]
    for window in windows:
        if max_positions % window:
            raise ValueError(
                f"{max_positions} positions are not a whole number of windows of {window} tokens; take a multiple."
            )
    lengths = [max_positions // window for window in windows]
    is_uniform = isinstance(config.projected_length, int)
    return {"max_position_embeddings": max_positions, "projected_length": lengths[0] if is_uniform else lengths}


class LinformerPreTrainedModel(PreTrainedModel):
    """Base of all Linformer classes: loading, initialization, and changing n."""

    config: LinformerConfig
    base_model_prefix = "linformer"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LinformerLayer"]
    _input_embed_layer = "word_embeddings"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": LinformerLayer, "attentions": LinformerAttention}

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | None, *model_args: Any, **kwargs: Any
    ) -> "LinformerPreTrainedModel | tuple[LinformerPreTrainedModel, dict]":
        """Load a checkpoint as transformers does, but refuse one whose configuration does not fit its weights.

        A head may be missing from the checkpoint and is then initialized; the encoder must be complete.

        Raises:
            ValueError: If the file of weights is damaged, lacks a part of the encoder, or has other projections than
                the configuration describes.
        """
        returns_info = kwargs.pop("output_loading_info", False)
        try:
            model, info = super().from_pretrained(
                pretrained_model_name_or_path, *model_args, output_loading_info=True, **kwargs
            )
        except Exception as error:
            # compared by name, because this file imports from torch and transformers only
            if type(error).__name__ != "SafetensorError":
                raise
            raise ValueError(f"The weights in {pretrained_model_name_or_path} are damaged: {error}.") from error
        prefix = "" if model.base_model is model else f"{cls.base_model_prefix}."
        encoder = {name for name in model.state_dict() if name.startswith(prefix)}
        missing = sorted(encoder.intersection(info["missing_keys"]))
        surplus = sorted(name for name in info["unexpected_keys"] if name.endswith("projection.weight"))
        is_allowed = kwargs.get("ignore_mismatched_sizes") or kwargs.get("num_hidden_layers") is not None
        # a file that lacks all of the encoder is of another model; transformers itself warns about that
        if (surplus or 0 < len(missing) < len(encoder)) and not is_allowed:
            raise ValueError(
                f"The configuration of {pretrained_model_name_or_path} does not fit its weights: the file lacks "
                f"{missing or 'nothing'} and also holds {surplus or 'nothing'}. Use the config.json that was "
                "saved with the weights, or give `ignore_mismatched_sizes=True` to initialize what is missing."
            )
        return (model, info) if returns_info else model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LinformerProjection):
            self._init_projection(module)
        elif isinstance(module, nn.Embedding) and self.config.position_init == "sinusoidal":
            if module is self.get_position_embeddings():
                init.copy_(module.weight, sinusoidal_positions(*module.weight.shape, self.config.initializer_range))
        elif isinstance(module, nn.Linear) and self.config.attention_init == "mimetic":
            for layer in self.base_model.layers:
                attention = layer.attention
                # both at the key, because its turn is after the query's; `init.copy_` leaves loaded weights alone
                if attention.key is module:
                    query, key = mimetic_query_key(self.config.num_attention_heads, self.config.hidden_size)
                    init.copy_(attention.query.weight, query)
                    init.copy_(attention.key.weight, key)

    def _init_projection(self, module: LinformerProjection) -> None:
        weight = module.weight
        start = projection_init(self.config)
        if start == "normal":
            init.normal_(weight, std=weight.shape[-1] ** -0.5)
        elif module.is_matrix:
            make_matrix = window_averages if start == "window" else folded_identity
            init.copy_(weight, make_matrix(*weight.shape[-2:]).expand_as(weight))
        elif start == "pick":
            channels, window = weight.shape
            init.copy_(weight, torch.eye(window)[torch.arange(channels) % window])
        else:
            init.constant_(weight, 1 / weight.shape[-1])  # the mean of the window

    def get_position_embeddings(self) -> nn.Embedding:
        """Return the position table, `(n, M)`."""
        return self.base_model.embeddings.position_embeddings

    @torch.no_grad()
    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Change n, the longest input, in the position table, the projections and the configuration together.

        With a larger n, every input that fitted before gives the same output as before: new rows of the position
        table repeat the learned rows from the first on, and new columns of E and F are zero until training changes
        them. A smaller n cuts off rows and columns; the shares in `log_shares` are then of the columns that are left.
        With pooling or convolution, the window stays and k changes with n.

        Args:
            new_num_position_embeddings: The new n, in tokens.

        Raises:
            ValueError: If k would exceed n, or n is not a whole number of windows. The model is then unchanged.
        """
        old, new = self.config.max_position_embeddings, new_num_position_embeddings
        fields = resized_fields(self.config, new)
        trial = copy.copy(self.config)
        trial.__dict__.update(fields)
        trial.validate_linformer()

        table = self.get_position_embeddings()
        rows = torch.arange(new, device=table.weight.device) % old
        table.weight = nn.Parameter(table.weight[rows], requires_grad=table.weight.requires_grad)
        table.num_embeddings = new
        num_empty = num_left = 0
        for module in self.modules():
            if isinstance(module, LinformerProjection) and module.is_matrix:
                weight = F.pad(module.weight, (0, new - old))  # negative padding cuts columns off
                is_empty = (weight == 0).all(-1)
                num_empty += int(is_empty.sum())
                num_left = max(num_left, int((~is_empty).sum(-1).max()))
                module.weight = nn.Parameter(weight, requires_grad=module.weight.requires_grad)
        self.config.__dict__.update(fields)
        if num_empty and new < old:
            logger.warning(
                f"{num_empty} rows of the projections have no weight below position {new}. In inputs of {new} tokens "
                f"their slots get attention but hold no token; reduce `projected_length` to {max(1, num_left)} with "
                "`linformer_hf.change_projected_length`, or train the model further."
            )


def check_mask_shape(attention_mask: torch.Tensor, batch_size: int, num_tokens: int) -> None:
    """Accept a mask of shape `(B, N)` only.

    Raises:
        ValueError: With the shape that was given, the one that is needed, and the reason.
    """
    if tuple(attention_mask.shape) != (batch_size, num_tokens):
        raise ValueError(
            f"`attention_mask` has shape {tuple(attention_mask.shape)}; a Linformer needs (batch, tokens) = "
            f"{(batch_size, num_tokens)}, 1 for a token and 0 for padding. Every slot mixes all positions, so a mask "
            "for pairs of tokens, causal or block-diagonal, cannot be applied."
        )


class LinformerModel(LinformerPreTrainedModel):
    """The encoder: from token ids to one vector per token."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        config.validate_linformer()  # again, since fields may have been changed after the configuration was made
        self.embeddings = LinformerEmbeddings(config)
        self.layers = nn.ModuleList([LinformerLayer(config, index) for index in range(config.num_hidden_layers)])
        self.projection = None
        if has_projection_weights(config) and config.projection_sharing == "layerwise":
            self.projection = LinformerProjection(config, max(config.projected_lengths))
        self.gradient_checkpointing = False
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode a batch of sequences.

        Args:
            input_ids: Token ids, `(B, N)`, with N at most n.
            attention_mask: 1 for a real token and 0 for padding, `(B, N)`, of any dtype. Padding may be anywhere.
                None if there is no padding.
            token_type_ids: Segment of each token, `(B, N)`. None means 0 for all tokens.
            inputs_embeds: Word embeddings instead of `input_ids`, `(B, N, M)`.

        Returns:
            `last_hidden_state`, `(B, N, M)`, without meaning at padding; on request also `hidden_states`, which are
            the embeddings and the output of each layer, and `attentions`, `(B, H, N, K)` per layer, whose rows sum to
            one.

        Raises:
            ValueError: If the input is longer than n, the mask has another shape, or an argument is given that a
                Linformer does not support; the message gives the reason and the repair.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either `input_ids` or `inputs_embeds`, and not both.")
        self._check_arguments(kwargs)
        batch_size, num_tokens = (inputs_embeds if input_ids is None else input_ids).shape[:2]
        longest = self.embeddings.position_embeddings.num_embeddings
        if num_tokens > longest:
            raise ValueError(
                f"The input has {num_tokens} tokens; this model reads `max_position_embeddings` = {longest}. Truncate "
                f"it, or call `model.resize_position_embeddings({num_tokens})` and train further."
            )
        positions = lengths = None
        if attention_mask is not None:
            check_mask_shape(attention_mask, batch_size, num_tokens)
            # a mask of ones is dropped, because fused kernels are faster without a mask
            if is_tracing(attention_mask) or not attention_mask.all():
                positions = token_positions(attention_mask, longest)
                lengths = (positions < longest).sum(-1, keepdim=True)
        elif input_ids is not None:
            self.warn_if_padding_and_no_attention_mask(input_ids, None)

        hidden_states = self.embeddings(input_ids, token_type_ids, inputs_embeds, positions)
        # kept for the padding of the output only; without packing, the memory is free after the first layer
        embeddings = packing = text_packing = None
        returns_maps = self._returns("output_attentions", kwargs)
        returns_layers = returns_maps or self._returns("output_hidden_states", kwargs)
        if positions is not None and not is_tracing(attention_mask) and not returns_layers:
            embeddings = hidden_states
            packing, text_packing, positions = pack_positions(positions, lengths, longest)
            num_tokens = text_packing.shape[1]
            if self.config.projection_type == "linear":
                positions = None  # unpacking gives rows of zeros for padding, which add nothing to E X
            hidden_states = pack(hidden_states, packing)
        shared_weight, shared_scores = self._shared_projection(num_tokens, lengths, keeps_slots=returns_maps)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                positions=positions,
                lengths=lengths,
                shared_weight=shared_weight,
                shared_scores=shared_scores,
                keeps_slots=returns_maps,
                packing=text_packing,
                **kwargs,
            )
        return BaseModelOutput(last_hidden_state=unpack(hidden_states, packing, embeddings))

    def _shared_projection(
        self, num_tokens: int, lengths: Lengths, keeps_slots: bool
    ) -> tuple[Weight, torch.Tensor | None]:
        """Return the weight that all layers share, and its `log_shares`; None for what does not exist.

        Slots after the last one with tokens are cut off both, unless `keeps_slots`.
        """
        if self.projection is None:
            return None, None
        weight = self.projection()
        if self.config.projection_type != "linear":
            return weight, None
        if not is_short(num_tokens, lengths, weight):
            return weight, None
        if not keeps_slots:
            weight = weight[used_slots(weight, num_tokens, lengths)]
        return weight, log_shares(weight, num_tokens, lengths)

    def _returns(self, name: str, arguments: dict) -> bool:
        """Tell whether a call returns what the argument or the field `name` asks for, from each layer."""
        return bool(arguments.get(name, getattr(self.config, name, False)))

    def _check_arguments(self, arguments: dict) -> None:
        """Refuse arguments that a Linformer does not support, and warn of those with side effects."""
        for name, reason in UNSUPPORTED_ARGUMENTS.items():
            value = arguments.pop(name, getattr(self.config, name, None))
            if value is not None and value is not False:
                raise ValueError(f"A Linformer does not support `{name}`: {reason}.")
        if torch.jit.is_tracing() and torch.onnx.is_in_onnx_export():
            logger.warning_once(
                "`torch.onnx.export(dynamo=False)` records the batch size and length of the example; the graph is "
                "wrong for others. Export with `dynamo=True`."
            )
        if arguments.get("output_attentions") and self.config._attn_implementation != "eager":
            logger.warning_once(
                f"{self.config._attn_implementation!r} returns no attention maps; calls with `output_attentions=True` "
                "compute with 'eager'. Load the model with `attn_implementation=\"eager\"` to avoid this warning."
            )


def divide(total: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """Divide a summed loss by a count, which may be a number, or a tensor on another device."""
    return total / (count.to(total.device) if torch.is_tensor(count) else count)


def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """Return the mean cross-entropy of logits `(..., L)` in nats, over the labels `(...)` that are not -100.

    The sum is divided by `num_items_in_batch`, or if that is None, by the number of labels.
    """
    labels = labels.to(logits.device).flatten()
    total = F.cross_entropy(logits.float().flatten(0, -2), labels, reduction="sum")
    return divide(total, (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)


class LinformerLMHead(nn.Module):
    """RoBERTa's masked-language-model head: linear map, activation, LayerNorm, and a score per word."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.layer_norm(self.activation(self.dense(hidden_states))))


class LinformerForMaskedLM(LinformerPreTrainedModel):
    """A Linformer that predicts masked tokens."""

    _tied_weights_keys = {"lm_head.decoder.weight": "linformer.embeddings.word_embeddings.weight"}

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = LinformerModel(config)
        self.lm_head = LinformerLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        """Return the map from hidden states to the vocabulary."""
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the map from hidden states to the vocabulary."""
        self.lm_head.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Score every word of the vocabulary for every token.

        Args:
            input_ids, attention_mask, token_type_ids, inputs_embeds: As in `LinformerModel`.
            labels: The id of the right word, or -100 for tokens that are not predicted, `(B, N)`.
            num_items_in_batch: Number of labels in all batches and processes of a training step, by which the loss is
                divided. None means the number of labels in this batch.

        Returns:
            `logits`, `(B, N, V)`, or with labels and `sparse_prediction`, `(labels that are not -100, V)`; `loss`, the
            mean cross-entropy in nats.
        """
        outputs = self.linformer(input_ids, attention_mask, token_type_ids, inputs_embeds, **kwargs)
        hidden_states = outputs.last_hidden_state
        if labels is not None and self.config.sparse_prediction:
            labels = labels.to(hidden_states.device)
            is_labelled = labels != -100
            hidden_states, labels = hidden_states[is_labelled], labels[is_labelled]
        logits = self.lm_head(hidden_states)
        return MaskedLMOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def classifier_dropout(config: LinformerConfig) -> float:
    """Return the dropout probability of the classification heads."""
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout


class LinformerClassificationHead(nn.Module):
    """RoBERTa's classification head: linear map, activation, and a score per label."""

    def __init__(self, config: LinformerConfig, num_labels: int) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.classifier_activation]
        self.dropout = nn.Dropout(classifier_dropout(config))
        self.output = nn.Linear(config.hidden_size, num_labels)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        return self.output(self.dropout(self.activation(self.dense(self.dropout(pooled)))))


def pool_sequence(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, classifier_pooling: str
) -> torch.Tensor:
    """Return the first real token of each sequence, or the mean of its real tokens, `(B, N, M)` to `(B, M)`."""
    if classifier_pooling == "cls" and attention_mask is None:
        return hidden_states[:, 0]
    sum_dtype = torch.promote_types(hidden_states.dtype, torch.float32)  # float16 overflows on long inputs
    if attention_mask is None:
        return hidden_states.mean(1, dtype=sum_dtype).to(hidden_states.dtype)
    is_token = attention_mask.to(hidden_states.device) != 0
    if classifier_pooling == "cls":
        first = is_token.int().argmax(-1)
        return hidden_states[torch.arange(first.shape[0], device=first.device), first]
    total = hidden_states.masked_fill(~is_token[..., None], 0.0).sum(1, dtype=sum_dtype)
    return (total / is_token.sum(-1, keepdim=True).clamp(min=1)).to(hidden_states.dtype)


def infer_problem_type(labels: torch.Tensor, num_labels: int) -> str:
    """Return the `problem_type` that fits the labels, by the rule of the classifiers in transformers."""
    if num_labels == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def sequence_loss(
    logits: torch.Tensor, labels: torch.Tensor, problem_type: str, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """Return the loss of a sequence classifier for a problem type, divided as in `cross_entropy`."""
    if problem_type == "single_label_classification":
        return cross_entropy(logits, labels, num_items_in_batch)
    targets = labels.to(logits.device).reshape(logits.shape).float()
    if problem_type == "regression":
        total = F.mse_loss(logits.float(), targets, reduction="sum")
    else:
        total = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="sum")
    return divide(total, targets.numel() if num_items_in_batch is None else num_items_in_batch)


class LinformerForSequenceClassification(LinformerPreTrainedModel):
    """A Linformer that predicts labels or numbers for a text, or a pair of texts."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = LinformerModel(config)
        self.classifier = LinformerClassificationHead(config, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Score every label for every sequence.

        Args:
            input_ids, attention_mask, token_type_ids, inputs_embeds: As in `LinformerModel`.
            labels: Class ids, `(B,)`; 0 or 1 for each of several labels, `(B, L)`; or numbers to predict, `(B,)` or
                `(B, L)`. `config.problem_type` says which. If it is None, it is set by the first labels: regression
                for one output, else one class per text for integers, else several labels per text.
            num_items_in_batch: As in `LinformerForMaskedLM`.

        Returns:
            `logits`, `(B, L)`; `loss`, the mean cross-entropy (in nats) or squared error.
        """
        outputs = self.linformer(input_ids, attention_mask, token_type_ids, inputs_embeds, **kwargs)
        pooled = pool_sequence(outputs.last_hidden_state, attention_mask, self.config.classifier_pooling)
        logits = self.classifier(pooled)
        if labels is not None and self.config.problem_type is None:
            # stored, as in transformers: pipelines read it to choose between softmax and sigmoid
            self.config.problem_type = infer_problem_type(labels, self.config.num_labels)
        loss = None
        if labels is not None:
            loss = sequence_loss(logits, labels, self.config.problem_type, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LinformerForTokenClassification(LinformerPreTrainedModel):
    """A Linformer that predicts a label for each token."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = LinformerModel(config)
        self.dropout = nn.Dropout(classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """Score every label for every token.

        Args:
            input_ids, attention_mask, token_type_ids, inputs_embeds: As in `LinformerModel`.
            labels: Class ids, or -100 for tokens that are not predicted, `(B, N)`.
            num_items_in_batch: As in `LinformerForMaskedLM`.

        Returns:
            `logits`, `(B, N, L)`; `loss`, the mean cross-entropy in nats.
        """
        outputs = self.linformer(input_ids, attention_mask, token_type_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        return TokenClassifierOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def mask_padding(logits: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Set the scores of padding, `(B, N, 2)`, to the smallest number of the dtype, so that no answer is there."""
    is_padding = attention_mask.to(logits.device) == 0  # a layer may be on another device than the input
    return logits.masked_fill(is_padding[..., None], torch.finfo(logits.dtype).min)


class LinformerForQuestionAnswering(LinformerPreTrainedModel):
    """A Linformer that predicts where in a text the answer to a question starts and ends."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = LinformerModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """Score every token as the start and as the end of the answer.

        Args:
            input_ids, attention_mask, token_type_ids, inputs_embeds: As in `LinformerModel`.
            start_positions: Index of the answer's first token, `(B,)`. The loss ignores an index outside the input.
            end_positions: Index of the answer's last token, `(B,)`, with the same rule.

        Returns:
            `start_logits` and `end_logits`, `(B, N)`, with the smallest number of their dtype at padding; `loss`, the
            mean of both cross-entropies in nats.
        """
        outputs = self.linformer(input_ids, attention_mask, token_type_ids, inputs_embeds, **kwargs)
        logits = self.qa_outputs(outputs.last_hidden_state)
        if attention_mask is not None:
            logits = mask_padding(logits, attention_mask)
        start_logits, end_logits = logits.unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LinformerForMultipleChoice(LinformerPreTrainedModel):
    """A Linformer that chooses one of several continuations of a text."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = LinformerModel(config)
        self.scorer = LinformerClassificationHead(config, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        """Score every choice.

        Args:
            input_ids: Each choice together with its context, `(B, choices, N)`.
            attention_mask: 1 for a real token and 0 for padding, `(B, choices, N)`.
            token_type_ids: Segment of each token, `(B, choices, N)`.
            inputs_embeds: Word embeddings instead of `input_ids`, `(B, choices, N, M)`.
            labels: Index of the right choice, `(B,)`.
            num_items_in_batch: As in `LinformerForMaskedLM`.

        Returns:
            `logits`, `(B, choices)`; `loss`, the mean cross-entropy in nats.
        """
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds)
        flat_inputs = [None if tensor is None else tensor.flatten(0, 1) for tensor in inputs]
        outputs = self.linformer(*flat_inputs, **kwargs)
        flat_mask = flat_inputs[1]
        pooled = pool_sequence(outputs.last_hidden_state, flat_mask, self.config.classifier_pooling)
        batch_size, num_choices = (input_ids if inputs_embeds is None else inputs_embeds).shape[:2]
        logits = self.scorer(pooled).view(batch_size, num_choices)
        return MultipleChoiceModelOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


__all__ = [
    "LinformerForMaskedLM",
    "LinformerForMultipleChoice",
    "LinformerForQuestionAnswering",
    "LinformerForSequenceClassification",
    "LinformerForTokenClassification",
    "LinformerModel",
    "LinformerPreTrainedModel",
]

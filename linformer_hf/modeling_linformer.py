# Copyright 2026 The linformer_hf authors.
# Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0
"""How a Linformer computes: self-attention with linear cost (Wang et al. 2020, arXiv 2006.04768).

The choices that make it different from RoBERTa, whose block it otherwise is:

- keys and values are compressed from N tokens to K slots before their linear maps, softmax(Q ((E X) W_K + b_K)^T) V;
- an input of N < n tokens reads the first N columns of E and F, at a cost in proportion;
- real tokens count their positions 0, 1, 2, ... and padding is multiplied by zero: the attention needs no mask for it;
- below n tokens the log of the share of each slot that the tokens reach is added to its scores (`log_shares`);
- the T real tokens of a padded batch pass through all but the attention as one text, `(1, T, M)`.

Letters: B batch, H heads, N tokens, K slots, D width of one head, M model width (H * D), I width of the MLP, W tokens
of a window, C channels, V vocabulary, L labels, T real tokens of a padded batch. n and k are the paper's: the longest
input, and the slots it is compressed into.
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
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_linformer import PROJECTION_INITS, LinformerConfig


logger = logging.get_logger(__name__)

Weight = torch.Tensor | None  # of a projection; None where nothing is learned
Positions = torch.Tensor | None  # as from `token_positions`; None where nothing is padding
Lengths = torch.Tensor | None  # real tokens of each text, `(B, 1)`; None where nothing is padding

# Added to the score of a slot without a token: its exponential is zero in every dtype, and float16 can hold the sum
EMPTY_SLOT = -1e4

# Amplitude of sinusoidal positions in deviations of the word embeddings. Only their ratio counts before the first
# LayerNorm; of 1 and 3 the larger let models learn to read context in fewer steps.
POSITION_AMPLITUDE = 3.0

# Size of mimetic query and key rows, and of the part in which they differ: they give scores of the same mean and
# deviation as a truncated SVD of 0.7 (I + noise), which takes a hundred times as long.
MIMETIC_NORM, MIMETIC_NOISE = 1.2, 0.65

REFUSED_ARGUMENTS = {
    "is_causal": "every slot mixes all positions, so a causal Linformer would read the future. Use it as an encoder",
    "past_key_values": "there is nothing to cache: a new token changes every slot. Use it as an encoder",
    "encoder_hidden_states": "it has no cross-attention. Encode both texts as one pair",
    "position_ids": "a token's position is also its column of the projections. Mark padding in `attention_mask`; "
    "positions then count the real tokens",
}


def is_tracing(tensor: torch.Tensor) -> bool:
    """Tell whether a graph is being recorded, in which nothing may depend on how many tokens are real."""
    is_captured = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    return is_captured or tensor.is_meta or torch.compiler.is_compiling() or torch.jit.is_tracing()


def token_positions(attention_mask: torch.Tensor, max_positions: int) -> torch.Tensor:
    """Number the real tokens 0, 1, 2, ... and send padding to the position after the last, n, `(B, N)`.

    Args:
        attention_mask: 0 for padding, anything else for a real token, `(B, N)`.
        max_positions: The longest input, n.
    """
    is_token = attention_mask != 0
    return (is_token.long().cumsum(-1) - 1).masked_fill(~is_token, max_positions)


class Packing(NamedTuple):
    """Where the T real tokens of a padded batch lie when each text begins at the left and the longest fills N."""

    rows: torch.Tensor  # of the tokens in that batch, laid out text after text, `(T,)`
    shape: tuple[int, int]  # (B, N)


def pack_positions(
    positions: torch.Tensor, lengths: torch.Tensor, max_positions: int
) -> tuple[Packing, Packing, torch.Tensor]:
    """Return how to pack a batch as it is, and with its padding moved to the right; and the positions in the latter.

    Args:
        positions: As from `token_positions`, `(B, N)`.
        lengths: Real tokens of each text, `(B, 1)`.
        max_positions: The longest input, n.
    """
    (batch_size, num_tokens), longest = positions.shape, max(int(lengths.max()), 1)
    rows = (positions < max_positions).flatten().nonzero()[:, 0]
    moved_rows = rows // num_tokens * longest + positions.flatten()[rows]
    columns = torch.arange(longest, device=positions.device)
    moved_positions = torch.where(columns < lengths, columns, max_positions)
    return Packing(rows, (batch_size, num_tokens)), Packing(moved_rows, (batch_size, longest)), moved_positions


def pack(states: torch.Tensor, packing: Packing | None) -> torch.Tensor:
    """Line up the real tokens of all texts, `(B, N, C)` to `(1, T, C)`; without padding there is nothing to do."""
    if packing is None:
        return states
    # a selection by numbers that never repeat: its gradient needs no sorting, as that of an index does
    return states.flatten(0, 1).index_select(0, packing.rows.to(states.device))[None]


def unpack(states: torch.Tensor, packing: Packing | None, batch: torch.Tensor | None = None) -> torch.Tensor:
    """Undo `pack`, `(1, T, C)` to `(B, N, C)`; padding is what it is in `batch`, or zeros."""
    if packing is None:
        return states
    batch = states.new_zeros(*packing.shape, states.shape[-1]) if batch is None else batch.to(states)
    rows = packing.rows.to(states.device)  # layers may lie on other devices than the embeddings
    return batch.flatten(0, 1).index_copy(0, rows, states[0]).unflatten(0, packing.shape)


def project_tokens(states: torch.Tensor, weight: torch.Tensor, positions: Positions) -> torch.Tensor:
    """Blend N rows into K slots with the columns of E (or F) that belong to their positions (paper, equation 7).

    Args:
        states: `(B, N, C)` with one matrix for all, or `(B, H, N, D)` with a matrix a head.
        weight: `(K, n)`, or `(H, K, n)`.
        positions: As from `token_positions`, `(B, N)`. None means that nothing is padding.

    Returns:
        `(B, K, C)`, or `(B, H, K, D)`.
    """
    if positions is None:
        # one matrix for each text, because torch folds a broadcast product into one that keeps a copy of all states
        return weight[..., : states.shape[-2]].expand(*states.shape[:-2], -1, -1) @ states
    columns = F.pad(weight, (0, 1)).flatten(0, -2).T  # (n + 1, [H *] K); padding reads the zeros
    columns = F.embedding(positions, columns).unflatten(-1, weight.shape[:-1])  # (B, N, [H,] K)
    return columns.movedim(1, -1) @ states


def pool_windows(
    states: torch.Tensor, projection_type: str, window: int, kernel: Weight, positions: Positions
) -> torch.Tensor:
    """Compress windows of W tokens into a slot each (paper, section 4, general projections).

    Only real tokens count: a partly filled window averages over what it holds, and an empty one gives zeros.

    Args:
        states: `(B, N, C)`.
        projection_type: `"mean_pool"`, `"max_pool"` or `"conv"`.
        window: W, in tokens.
        kernel: Weights of the depthwise convolution, `(C, W)`; None for the poolings.
        positions: As from `token_positions`, `(B, N)`. None means that nothing is padding.

    Returns:
        One slot for each window that N tokens can fill, `(B, ceil(N / W), C)`.
    """
    batch_size, num_tokens, channels = states.shape
    num_slots = (num_tokens + window - 1) // window
    num_rows = num_slots * window
    absent = torch.finfo(states.dtype).min if projection_type == "max_pool" else 0.0
    if positions is None:
        rows = F.pad(states, (0, 0, 0, num_rows - num_tokens), value=absent)
        filled = torch.full((batch_size, 1), num_tokens, device=states.device)
    else:
        # every token moves to the row of its position; padding goes to one row more, which is cut off
        targets = positions.clamp(max=num_rows)[..., None].expand_as(states)
        rows = states.new_full((batch_size, num_rows + 1, channels), absent).scatter(1, targets, states)[:, :-1]
        filled = (positions < num_rows).sum(-1, keepdim=True)
    rows = rows.reshape(batch_size, -1, window, channels)
    if projection_type == "conv":
        return torch.einsum("bswc,cw->bsc", rows, kernel.to(rows.dtype))
    starts = torch.arange(num_slots, device=states.device) * window
    held = (filled - starts).clamp(0, window)[..., None]  # tokens in each window, (B, S, 1)
    if projection_type == "mean_pool":
        total = rows.sum(2, dtype=torch.promote_types(rows.dtype, torch.float32))  # float16 would overflow
        return (total / held.clamp(min=1)).to(rows.dtype)
    return rows.amax(2).masked_fill(held == 0, 0.0)


def may_be_short(num_tokens: int, max_positions: int) -> bool:
    """Tell whether an input has less than n tokens, or a graph is recorded that must serve those that have."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing() or num_tokens < max_positions


def log_shares(weight: torch.Tensor, num_tokens: int, lengths: Lengths) -> torch.Tensor:
    """Return what a text shorter than n adds to the scores of the slots.

    It is the log of the share of a slot's weights, squared, in the columns that the text reaches. A slot that no token
    reaches has only a bias for its key, and would take attention for it; its share of 0 takes it out of the softmax.
    So identity projections attend as a dense encoder does, at every length. A text of n tokens has shares of 1,
    which add nothing, and a weight that is spread evenly has equal shares, which cancel in the softmax.

    No gradient flows through the shares: fused kernels take no mask that needs one.

    Args:
        weight: E, `(K, n)` or `(H, K, n)`.
        num_tokens: N.
        lengths: Real tokens of each text, `(B, 1)`. None means that each has N.

    Returns:
        `(B, 1, 1, K)`, or `(B, H, 1, K)`, with B = 1 where all texts have N tokens; in float32 or float64.
    """
    weight = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    norms = torch.linalg.vector_norm(weight, dim=-1)
    norms = norms.masked_fill(norms == 0, 1.0)
    if lengths is None:
        shares = (torch.linalg.vector_norm(weight[..., :num_tokens], dim=-1) / norms).square()[None]
    else:
        is_token = torch.arange(num_tokens, device=weight.device) < lengths.to(weight.device).clamp(min=1)
        squares = (weight[..., :num_tokens] / norms[..., None]).square()
        shares = (is_token.to(squares.dtype) @ squares.transpose(-1, -2)).to(squares.dtype)  # ([H,] B, K)
        shares = shares if weight.dim() == 2 else shares.transpose(0, 1)
    scores = shares.log().masked_fill(shares == 0, EMPTY_SLOT)
    return scores[:, None, None] if weight.dim() == 2 else scores[:, :, None]


def last_reached_slot(scores: torch.Tensor) -> int:
    """Count the slots up to the last one that some text reaches, at least one; those after it need no computing.

    Args:
        scores: As from `log_shares`, `(B, 1, 1, K)`.
    """
    is_reached = (scores > EMPTY_SLOT).flatten(0, 2).any(0)
    return int(is_reached.nonzero().max()) + 1 if is_reached.any() else 1


def empty_window_scores(lengths: torch.Tensor, num_tokens: int, window: int) -> torch.Tensor:
    """Return what takes windows without a real token out of the softmax.

    The first window always stays, so that a row of padding alone has something to attend to.

    Args:
        lengths: Real tokens of each text, `(B, 1)`.
        num_tokens: N.
        window: W, in tokens.

    Returns:
        0 for a slot to attend to and `EMPTY_SLOT` for others, `(B, 1, 1, ceil(N / W))`, in float32.
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
    """Attend in plain steps, with the host's signature; the one implementation that forms the attention maps.

    From queries `(B, H, N, D)`, keys and values `(B, H, K, D)` and an additive mask that broadcasts to
    `(B, H, N, K)` to the output `(B, N, H, D)` and the maps `(B, H, N, K)`.
    """
    scores = query @ key.transpose(-1, -2) * scaling
    scores = scores if attention_mask is None else scores + attention_mask
    weights = F.dropout(scores.softmax(-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def has_projection_weights(config: LinformerConfig) -> bool:
    """Tell whether the projections are learned; the poolings are not."""
    return config.projection_type in ("linear", "conv")


class LinformerProjection(nn.Module):
    """E or F of the paper: owns the weight that blends tokens into slots.

    Calling it returns the weight rather than a product, so that one matrix can serve every layer while hooks
    (offloading, sharding) still run when it is fetched.
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
        """Return the weight: `(k, n)`, `(H, k, n)` with a matrix a head, or `(M, W)` for a convolution."""
        # FSDP2 makes a unit a subclass, and frees what it has gathered as soon as the unit's forward returns
        return self.weight if type(self) is LinformerProjection else self.weight.clone()


class LinformerEmbeddings(nn.Module):
    """Sum of word, position and token-type embeddings, normalised."""

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
            # selection, not multiplication: what stands in a padded place, NaN included, ends here
            embeddings = embeddings.masked_fill((positions == num_positions)[..., None], 0.0)
            position_ids = positions.clamp(max=num_positions - 1)
        embeddings = embeddings + self.token_type_embeddings(token_type_ids) + self.position_embeddings(position_ids)
        return self.dropout(self.layer_norm(embeddings))


class LinformerAttention(nn.Module):
    """Multi-head attention from N queries to K compressed keys and values."""

    def __init__(self, config: LinformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.dropout = config.attention_probs_dropout_prob
        self.is_causal = False  # the host's kernels assume True where nothing is said
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
        packing: Packing | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from every token to the slots.

        Args:
            hidden_states: `(B, N, M)`. Rows of padding must be finite.
            positions: As from `token_positions`, `(B, N)`. None means that padding is zero, or that there is none.
            lengths: Real tokens of each text, `(B, 1)`. None means that nothing is padding.
            shared_weight: The projection of all layers, under layerwise sharing.
            shared_scores: What is added to the scores of its slots, as from `log_shares`; None adds nothing.
            packing: How `hidden_states`, `(1, T, M)`, become several texts, whose `positions` and `lengths` are given
                then.

        Returns:
            The output, shaped as the input, and the attention maps, `(B, H, N, K)`, or None from a fused kernel.
        """
        query_states = self.split_heads(unpack(self.query(hidden_states), packing))
        key_weight, value_weight = self.projection_weights(shared_weight)
        # below K tokens it is cheaper to map first; an exported graph keeps one order for all lengths
        is_matrix = self.config.projection_type == "linear"
        is_short = is_matrix and not torch.compiler.is_exporting() and query_states.shape[2] < key_weight.shape[-2]
        if self.config.projection_sharing == "none" or is_short:
            key_states = self.map_then_compress(self.key, hidden_states, key_weight, positions, packing)
            value_states = self.map_then_compress(self.value, hidden_states, value_weight, positions, packing)
        else:
            texts = unpack(hidden_states, packing)
            key_rows = value_rows = self.compress(texts, key_weight, positions)
            if value_weight is not key_weight:
                value_rows = self.compress(texts, value_weight, positions)
            key_states = self.split_heads(self.key(key_rows))
            value_states = self.split_heads(self.value(value_rows))

        # fused kernels never form the maps, so a call that asks for them takes the eager path
        mask = self.slot_mask(query_states, key_weight, lengths, shared_scores)
        implementation = "eager" if kwargs.get("output_attentions") else self.implementation_for(query_states, mask)
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
        """Return E and F of this layer: one and the same tensor when they are one, None when there are no weights."""
        if not has_projection_weights(self.config):
            return None, None
        if self.config.projection_sharing in ("none", "headwise"):
            return self.key_projection(), self.value_projection()
        weight = self.projection() if self.config.projection_sharing == "key_value" else shared_weight
        if self.config.projection_type == "linear":
            weight = weight[: self.projected_length]
        return weight, weight

    def compress(self, states: torch.Tensor, weight: Weight, positions: Positions) -> torch.Tensor:
        """Compress tokens into slots, as `project_tokens` or `pool_windows` do."""
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
        """Compress the mapped states of each text to `(B, H, K, D)`; the bias joins last, as the other way round.

        That costs less than mapping what is compressed, where each head has its own projection or N is below K.
        """
        if type(linear) is nn.Linear and linear.bias.device == hidden_states.device:
            mapped = linear(hidden_states)
            bias = linear.bias.to(mapped.dtype)
        else:
            # a row of zeros asks the module for its bias: an adapter or a hook may stand before its parameters
            mapped = linear(F.pad(hidden_states.flatten(0, 1), (0, 0, 0, 1)))
            mapped, bias = mapped[:-1].unflatten(0, hidden_states.shape[:2]), mapped[-1]
        states = unpack(mapped - bias, packing)
        if self.config.projection_type == "linear" and self.config.projection_sharing == "none":
            return self.compress(self.split_heads(states), weight, positions) + self.split_heads(bias[None, None])
        return self.split_heads(self.compress(states, weight, positions) + bias)

    def slot_mask(
        self, query_states: torch.Tensor, key_weight: Weight, lengths: Lengths, shared_scores: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return what is added to the scores of the slots, `(B, 1 or H, 1, K)`, or None for nothing."""
        num_tokens = query_states.shape[2]
        if self.config.projection_type != "linear":
            scores = None if lengths is None else empty_window_scores(lengths, num_tokens, self.window)
        elif self.config.projection_sharing == "layerwise":
            scores = None if shared_scores is None else shared_scores[..., : self.projected_length]
        elif lengths is not None or may_be_short(num_tokens, key_weight.shape[-1]):
            scores = log_shares(key_weight, num_tokens, lengths)
        else:
            scores = None
        return None if scores is None else scores.to(query_states)

    def implementation_for(self, query_states: torch.Tensor, mask: torch.Tensor | None) -> str:
        """Name the attention that computes a call: the configured one, or SDPA where that one cannot."""
        name = self.config._attn_implementation
        if name == "flex_attention" and query_states.device.type == "cpu":
            # compiled by torch 2.13 it reads past its memory when it adds a mask, or attends to less than 16 slots
            logger.warning_once("'flex_attention' is unsafe on a CPU; calls there compute with 'sdpa'.")
            return "sdpa"
        # flash attention takes no additive mask, and the host's flex attention reads that of the first head alone
        if mask is not None and ("flash" in name or name == "flex_attention"):
            logger.warning_once(
                f"{name!r} cannot leave out slots that a short or padded input leaves empty; such calls compute with "
                "'sdpa'. Inputs of `max_position_embeddings` tokens without padding are not affected."
            )
            return "sdpa"
        return name


class LinformerMLP(nn.Module):
    """Two linear maps with an activation between, for each token on its own.

    In training the activation, the largest of what a layer would keep for its gradients, is computed twice instead:
    hooks on it run twice, and the transforms of `torch.func` want evaluation mode.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if not self.repeats_activation(hidden_states):
            return self.output(self.activation(self.intermediate(hidden_states)))
        weights = dict(self.output.named_parameters())  # a functional call takes its own back before the backward pass
        return checkpoint(self.activate_and_map, self.intermediate(hidden_states), weights, use_reentrant=False)

    def activate_and_map(self, inner: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
        """Activate `(B, N, I)`, and map it to `(B, N, M)` with the weights of the output."""
        return functional_call(self.output, weights, (self.activation(inner),))

    def repeats_activation(self, hidden_states: torch.Tensor) -> bool:
        """Tell whether the backward pass computes what is activated again: in training, where it would be kept."""
        if not (self.training and torch.is_grad_enabled()) or is_tracing(hidden_states):
            return False
        weights = list(self.output.parameters())
        # sharded weights, which are no plain parameters, can be read in the module's own forward alone
        is_plain = all(type(weight) in (nn.Parameter, torch.Tensor) for weight in weights)
        return is_plain and any(weight.requires_grad for weight in weights)


class LinformerLayer(GradientCheckpointingLayer):
    """RoBERTa's block: attention and MLP, each added to its input and normalised afterwards."""

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
    """Average windows of n / k tokens, `(k, n)`; a token on a border counts in both windows by its share."""
    edges = torch.arange(slots + 1, dtype=torch.float64) * tokens / slots
    left, right, token = edges[:-1, None], edges[1:, None], torch.arange(tokens)
    overlap = (torch.minimum(right, token + 1) - torch.maximum(left, token)).clamp(min=0)
    return (overlap * slots / tokens).float()


def folded_identity(slots: int, tokens: int) -> torch.Tensor:
    """Put token j into slot j mod k, `(k, n)`, which is full attention for texts of up to k tokens.

    Tokens after the first k are weighted so that all of a slot together are as large as its first.
    """
    folded = torch.eye(slots)[:, torch.arange(tokens) % slots]
    folded[:, slots:] *= max(tokens / slots - 1, 1) ** -0.5
    return folded


def projection_init(config: LinformerConfig) -> str:
    """Name what the projections of a new model start from; None in the configuration means the default of the kind."""
    if config.projection_init is not None:
        return config.projection_init
    is_shared = config.projection_type == "linear" and config.projection_sharing == "layerwise"
    if is_shared and len(set(config.projected_lengths)) > 1:
        logger.warning_once(
            "Layers with different `projected_length` share one matrix and read its first rows, which start as a "
            "folded identity: each slot sums tokens that lie far apart. With `projection_sharing` = 'key_value' every "
            "layer starts from windows, from which models learn more."
        )
        return "folded"
    return PROJECTION_INITS[config.projection_type][0]


def sinusoidal_positions(num_positions: int, width: int, initializer_range: float) -> torch.Tensor:
    """Return a position table of sines and cosines (Vaswani et al. 2017, section 3.5), `(num_positions, width)`.

    Args:
        num_positions: Rows.
        width: Columns.
        initializer_range: Deviation of the word embeddings that the table is added to.
    """
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * rates
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]
    return POSITION_AMPLITUDE * initializer_range * table


def mimetic_query_key(num_heads: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw query and key weights of all heads whose products resemble the identity, each `(width, width)`.

    A head's query and key rows are nearly the same basis of a random subspace, so that tokens attend to what resembles
    them, as in trained models (Trockman and Kolter 2023, arXiv 2305.09828).

    Args:
        num_heads: H.
        width: Of the model, M.
    """
    # float32 by name: a model may be built under a default dtype of half precision, which has no QR
    draws = torch.randn(num_heads, width, width // num_heads, dtype=torch.float32)
    bases = torch.linalg.qr(draws)[0].transpose(1, 2)
    noise = torch.randn(bases.shape, dtype=torch.float32) * width**-0.5
    query, key = MIMETIC_NORM * bases, MIMETIC_NORM * (bases + MIMETIC_NOISE * noise)
    return query.flatten(0, 1), key.flatten(0, 1)


def resized_fields(config: LinformerConfig, max_positions: int) -> dict[str, int | list[int]]:
    """Return the configuration fields that a new n changes, or raise a ValueError if it is no number of windows."""
    if config.projection_type == "linear":
        return {"max_position_embeddings": max_positions}
    windows = [config.max_position_embeddings // length for length in config.projected_lengths]
    for window in windows:
        if max_positions % window:
            raise ValueError(
                f"{max_positions} positions are not a whole number of windows of {window} tokens; take a multiple."
            )
    lengths = [max_positions // window for window in windows]
    uniform = isinstance(config.projected_length, int)
    return {"max_position_embeddings": max_positions, "projected_length": lengths[0] if uniform else lengths}


class LinformerPreTrainedModel(PreTrainedModel):
    """What all Linformers share: initialization, capabilities, and growing or shrinking n."""

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
        """Load a checkpoint as the host does, but never one that holds a part of the body only.

        Raises:
            ValueError: If the weights are damaged, or the configuration describes projections or layers that they do
                not have.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        try:
            model, info = super().from_pretrained(
                pretrained_model_name_or_path, *model_args, output_loading_info=True, **kwargs
            )
        except Exception as error:
            if type(error).__name__ != "SafetensorError":  # the one of a library that this file may not import
                raise
            raise ValueError(f"The weights in {pretrained_model_name_or_path} are damaged: {error}.") from error
        prefix = "" if model.base_model is model else f"{cls.base_model_prefix}."
        body = {name for name in model.state_dict() if name.startswith(prefix)}
        missing = sorted(body.intersection(info["missing_keys"]))
        surplus = sorted(name for name in info["unexpected_keys"] if name.endswith("projection.weight"))
        is_wanted = kwargs.get("ignore_mismatched_sizes") or kwargs.get("num_hidden_layers") is not None
        if (surplus or 0 < len(missing) < len(body)) and not is_wanted:
            raise ValueError(
                f"The configuration of {pretrained_model_name_or_path} does not fit its weights: the model needs "
                f"{missing or 'nothing'} besides, and has no place for {surplus or 'nothing'}. Take the right "
                "config.json, or give `ignore_mismatched_sizes=True` to start those anew."
            )
        return (model, info) if wants_info else model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LinformerProjection):
            self._init_projection(module)
        elif isinstance(module, nn.Embedding) and self.config.position_init == "sinusoidal":
            if module is self.get_position_embeddings():
                init.copy_(module.weight, sinusoidal_positions(*module.weight.shape, self.config.initializer_range))
        elif isinstance(module, nn.Linear) and self.config.attention_init == "mimetic":
            attentions = [layer.attention for layer in self.base_model.layers]
            # at the key, which comes second: the host calls for each module, and skips those that are loaded
            for attention in (attention for attention in attentions if attention.key is module):
                query, key = mimetic_query_key(self.config.num_attention_heads, self.config.hidden_size)
                init.copy_(attention.query.weight, query)
                init.copy_(attention.key.weight, key)

    def _init_projection(self, module: LinformerProjection) -> None:
        weight, start = module.weight, projection_init(self.config)
        if start == "normal":
            init.normal_(weight, std=weight.shape[-1] ** -0.5)
        elif module.is_matrix:
            rows = window_averages if start == "window" else folded_identity
            init.copy_(weight, rows(*weight.shape[-2:]).expand_as(weight))
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

        What was learned is kept: with a larger n every input gives the same output as before. New rows of the
        position table repeat the learned ones from the first on, and new columns of E and F start at zero, which
        training can change. A smaller n cuts rows and columns off; a slot that loses columns then counts as wholly
        reached by fewer tokens (`log_shares`). With windows, k follows n and the window stays.

        Args:
            new_num_position_embeddings: The new n, in tokens.

        Raises:
            ValueError: If k would exceed n, or n be no whole number of windows. Nothing is changed then.
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
        num_empty = 0
        for module in self.modules():
            if isinstance(module, LinformerProjection) and module.is_matrix:
                weight = F.pad(module.weight, (0, new - old))  # a negative pad cuts
                num_empty += int((weight == 0).all(-1).sum())
                module.weight = nn.Parameter(weight, requires_grad=module.weight.requires_grad)
        self.config.__dict__.update(fields)
        if num_empty and new < old:
            logger.warning(
                f"{num_empty} slots of the projections read no position below {new}. They take attention for nothing "
                f"in inputs of {new} tokens; give the model fewer slots, or train it further."
            )


def check_mask_shape(attention_mask: torch.Tensor, batch_size: int, num_tokens: int) -> None:
    """Accept a mask of shape `(B, N)`; for any other raise a ValueError that says why it has no meaning."""
    if tuple(attention_mask.shape) != (batch_size, num_tokens):
        raise ValueError(
            f"`attention_mask` has shape {tuple(attention_mask.shape)}; a Linformer takes (batch, tokens) = "
            f"{(batch_size, num_tokens)}, 1 for a token and 0 for padding. Every slot mixes all positions, so a mask "
            "between pairs of tokens, causal or block-diagonal, has no meaning here."
        )


class LinformerModel(LinformerPreTrainedModel):
    """The encoder: token ids to one vector a token."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        config.validate_linformer()  # fields may have been set since the configuration was made
        self.embeddings = LinformerEmbeddings(config)
        self.layers = nn.ModuleList([LinformerLayer(config, index) for index in range(config.num_hidden_layers)])
        self.projection = None
        if has_projection_weights(config) and config.projection_sharing == "layerwise":
            self.projection = LinformerProjection(config, max(config.projected_lengths))
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
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
            attention_mask: 1 for a real token and 0 for padding, `(B, N)`, of any dtype. Padding may stand anywhere.
                None means that nothing is padding.
            token_type_ids: Segment of each token, `(B, N)`. None means 0 throughout.
            inputs_embeds: Word embeddings in place of `input_ids`, `(B, N, M)`.

        Returns:
            `last_hidden_state`, `(B, N, M)`, with nothing of use at padding; on request also `hidden_states`, the
            embeddings and every layer's output, and `attentions`, `(B, H, N, K)` a layer with rows that sum to one.

        Raises:
            ValueError: If the input is longer than n, the mask has another shape, or something is asked for that a
                Linformer cannot do; the message gives the reason and the way out.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either `input_ids` or `inputs_embeds`, and not both.")
        self._refuse_what_cannot_be(kwargs)
        batch_size, num_tokens = (inputs_embeds if input_ids is None else input_ids).shape[:2]
        longest = self.embeddings.position_embeddings.num_embeddings
        if num_tokens > longest:
            raise ValueError(
                f"The input has {num_tokens} tokens; this model reads `max_position_embeddings` = {longest}. Truncate "
                f"it, or call `model.resize_position_embeddings({num_tokens})` and train further."
            )
        positions = lengths = embeddings = packing = text_packing = None
        if attention_mask is not None:
            check_mask_shape(attention_mask, batch_size, num_tokens)
            if is_tracing(attention_mask) or not attention_mask.all():
                positions = token_positions(attention_mask, longest)
                lengths = (positions < longest).sum(-1, keepdim=True)
        elif input_ids is not None:
            self.warn_if_padding_and_no_attention_mask(input_ids, None)

        hidden_states = self.embeddings(input_ids, token_type_ids, inputs_embeds, positions)
        if positions is not None and not is_tracing(attention_mask) and not self._is_asked_for_states(kwargs):
            embeddings = hidden_states
            packing, text_packing, positions = pack_positions(positions, lengths, longest)
            num_tokens = text_packing.shape[1]
            positions = None if self.config.projection_type == "linear" else positions  # rows of zeros add nothing
            hidden_states = pack(hidden_states, packing)
        shared_weight = None if self.projection is None else self.projection()
        shared_scores = None
        is_matrix = shared_weight is not None and self.config.projection_type == "linear"
        if is_matrix and (lengths is not None or may_be_short(num_tokens, longest)):
            shared_scores = log_shares(shared_weight, num_tokens, lengths)
            # on other devices the answer would have to be waited for; maps that are asked for keep all K columns
            if shared_scores.is_cpu and not is_tracing(shared_scores) and not self._is_asked_for_states(kwargs):
                reached = last_reached_slot(shared_scores)
                shared_weight, shared_scores = shared_weight[:reached], shared_scores[..., :reached]
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                positions=positions,
                lengths=lengths,
                shared_weight=shared_weight,
                shared_scores=shared_scores,
                packing=text_packing,
                **kwargs,
            )
        return BaseModelOutput(last_hidden_state=unpack(hidden_states, packing, embeddings))

    def _is_asked_for_states(self, arguments: dict) -> bool:
        records = ("output_hidden_states", "output_attentions")
        return any(arguments.get(name, getattr(self.config, name, False)) for name in records)

    def _refuse_what_cannot_be(self, arguments: dict) -> None:
        for name, reason in REFUSED_ARGUMENTS.items():
            value = arguments.pop(name, None)
            if value is not None and value is not False:
                raise ValueError(f"A Linformer takes no `{name}`: {reason}.")
        if torch.jit.is_tracing() and torch.onnx.is_in_onnx_export():
            logger.warning_once(
                "The exporter of `torch.onnx.export(dynamo=False)` records this batch and length; the graph is right "
                "for them alone. Export with `dynamo=True` for others."
            )
        if arguments.get("output_attentions") and self.config._attn_implementation != "eager":
            logger.warning_once(
                f"{self.config._attn_implementation!r} forms no attention maps; with `output_attentions=True` a call "
                'computes eagerly. Load the model with `attn_implementation="eager"` to do so always.'
            )


def divide(total: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """Divide a summed loss by a count, which may be a plain number or lie on another device."""
    return total / (count.to(total.device) if torch.is_tensor(count) else count)


def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """Return the cross-entropy of logits `(..., L)`, summed over labels `(...)` that are not -100.

    The sum is divided by `num_items_in_batch`, or by the number of labels where that is None.
    """
    labels = labels.to(logits.device).flatten()
    total = F.cross_entropy(logits.float().flatten(0, -2), labels, reduction="sum")
    return divide(total, (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)


class LinformerLMHead(nn.Module):
    """RoBERTa's head for masked words: dense, activation, norm, and a score for each word."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.layer_norm(self.activation(self.dense(hidden_states))))


class LinformerForMaskedLM(LinformerPreTrainedModel):
    """A Linformer that fills in masked words."""

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
        """Score every word of the vocabulary at every token.

        Args:
            input_ids, attention_mask, token_type_ids, inputs_embeds: As in `LinformerModel`.
            labels: The right word's id, or -100 where there is nothing to predict, `(B, N)`.
            num_items_in_batch: Labels of the whole step, over all its batches and processes; the loss is divided by
                it. None divides by the labels of this batch.

        Returns:
            `logits`, `(B, N, V)`, or `(L, V)` for the L labelled tokens with `sparse_prediction` and labels; `loss`,
            the mean cross-entropy in nats.
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
    """Return the dropout of the classification heads."""
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout


class LinformerClassificationHead(nn.Module):
    """RoBERTa's head for a whole sequence: dense, activation, and a score for each label."""

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
    """Represent each sequence by its first real token, or by the mean of its real tokens, `(B, N, M)` to `(B, M)`."""
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


def problem_of(labels: torch.Tensor, num_labels: int) -> str:
    """Name the problem that labels belong to, in the words of the host's `problem_type`."""
    if num_labels == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def sequence_loss(
    logits: torch.Tensor, labels: torch.Tensor, problem_type: str, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """Return the loss of a sequence classifier for the problem at hand, divided as in `cross_entropy`."""
    if problem_type == "single_label_classification":
        return cross_entropy(logits, labels, num_items_in_batch)
    targets = labels.to(logits.device).reshape(logits.shape).float()
    if problem_type == "regression":
        total = F.mse_loss(logits.float(), targets, reduction="sum")
    else:
        total = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="sum")
    return divide(total, targets.numel() if num_items_in_batch is None else num_items_in_batch)


class LinformerForSequenceClassification(LinformerPreTrainedModel):
    """A Linformer that labels or rates a whole text, or a pair of texts."""

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
            labels: Class ids, `(B,)`; 0 and 1 for each of several labels, `(B, L)`; or numbers to predict, `(B,)` or
                `(B, L)`. `config.problem_type` says which; where it is None, one output means regression, whole
                numbers mean classes, and fractions mean several labels; the configuration then keeps it.
            num_items_in_batch: As in `LinformerForMaskedLM`.

        Returns:
            `logits`, `(B, L)`; `loss`, the mean cross-entropy (in nats) or squared error.
        """
        outputs = self.linformer(input_ids, attention_mask, token_type_ids, inputs_embeds, **kwargs)
        pooled = pool_sequence(outputs.last_hidden_state, attention_mask, self.config.classifier_pooling)
        logits = self.classifier(pooled)
        if labels is not None and self.config.problem_type is None:
            # kept, as the host's classes do: a pipeline reads there whether scores become a softmax or sigmoids
            self.config.problem_type = problem_of(labels, self.config.num_labels)
        return SequenceClassifierOutput(
            loss=None
            if labels is None
            else sequence_loss(logits, labels, self.config.problem_type, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LinformerForTokenClassification(LinformerPreTrainedModel):
    """A Linformer that labels each token."""

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
            labels: Class ids, or -100 where there is nothing to predict, `(B, N)`.
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
    """Give padding the smallest number of the dtype for its scores, `(B, N, 2)`, so that no answer starts there."""
    is_padding = attention_mask.to(logits.device) == 0  # layers may lie on other devices than the input
    return logits.masked_fill(is_padding[..., None], torch.finfo(logits.dtype).min)


class LinformerForQuestionAnswering(LinformerPreTrainedModel):
    """A Linformer that marks where in a text the answer starts and ends."""

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
        """Score every token as start and as end of the answer.

        Args:
            input_ids, attention_mask, token_type_ids, inputs_embeds: As in `LinformerModel`.
            start_positions: Index of the answer's first token, `(B,)`. An index outside the input is not counted.
            end_positions: Index of the answer's last token, likewise.

        Returns:
            `start_logits` and `end_logits`, `(B, N)`, the smallest number of their dtype at padding; `loss`, the mean
            of both cross-entropies in nats.
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
    """A Linformer that picks one of several continuations."""

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
            input_ids: Each choice with its context, `(B, choices, N)`.
            attention_mask: 1 for a real token and 0 for padding, `(B, choices, N)`.
            token_type_ids: Segment of each token, `(B, choices, N)`.
            inputs_embeds: Word embeddings in place of `input_ids`, `(B, choices, N, M)`.
            labels: Index of the right choice, `(B,)`.
            num_items_in_batch: As in `LinformerForMaskedLM`.

        Returns:
            `logits`, `(B, choices)`; `loss`, the mean cross-entropy in nats.
        """
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds)
        flat = [None if tensor is None else tensor.flatten(0, 1) for tensor in inputs]
        outputs = self.linformer(*flat, **kwargs)
        pooled = pool_sequence(outputs.last_hidden_state, flat[1], self.config.classifier_pooling)
        logits = self.scorer(pooled).view((input_ids if inputs_embeds is None else inputs_embeds).shape[:2])
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

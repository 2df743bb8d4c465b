"""A tiny BERT, and a Linformer with the RoBERTa that it equals, whose attention maps are known."""

from roberta_twins import twins
from transformers import RobertaForMaskedLM

from linformer_hf import LinformerForMaskedLM


TINY_BERT = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}


def identity_twins():
    """Return a Linformer with k = n whose projections are the identity, and the RoBERTa that it equals."""
    ours, theirs = twins(LinformerForMaskedLM, RobertaForMaskedLM)
    return ours.linformer, theirs.roberta

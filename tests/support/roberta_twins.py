"""A RoBERTa and the Linformer of k = n with its weights, which must compute the same."""

import torch
from conftest import enliven, tiny_config
from transformers import RobertaConfig

from linformer_hf import LinformerForMultipleChoice


LONGEST, PAD = 19, 1

# RoBERTa's names and ours, replaced from the first row to the last
NAMES = (
    ("roberta.encoder.layer.", "linformer.layers."),
    ("roberta.", "linformer."),
    ("embeddings.LayerNorm", "embeddings.layer_norm"),
    ("attention.output.LayerNorm", "attention_layer_norm"),
    ("attention.output.dense", "attention.output"),
    ("attention.self.", "attention."),
    ("intermediate.dense", "mlp.intermediate"),
    (".output.dense", ".mlp.output"),
    (".output.LayerNorm", ".mlp_layer_norm"),
    ("lm_head.bias", "lm_head.decoder.bias"),
    ("classifier.out_proj", "classifier.output"),
)


def names_for(model):
    """The table for one of our models: the head for multiple choice is a pooler and a bare linear map in RoBERTa."""
    if not isinstance(model, LinformerForMultipleChoice):
        return NAMES
    (head,) = (name for name, _ in model.named_children() if name != "linformer")
    return (("classifier.", f"{head}.output."), ("roberta.pooler.dense", f"{head}.dense"), *NAMES)


def our_tensors(model, tensors):
    """Rename RoBERTa's tensors to those of our model; its position table starts with rows that no token reads."""
    renamed = {}
    for name, tensor in tensors.items():
        for theirs, ours in names_for(model):
            name = name.replace(theirs, ours)
        renamed[name] = tensor[PAD + 1 :] if "position_embeddings" in name else tensor
    return renamed


def make_identity(model):
    """Let every slot be one token: a unit matrix, or a convolution kernel of one."""
    for name, weight in model.named_parameters():
        if "projection" in name:
            weight.data.copy_(torch.eye(weight.shape[-1]) if weight.shape[-1] == LONGEST else torch.ones_like(weight))


def twins(our_class, their_class, projection_type="linear", projection_sharing="layerwise", **fields):
    """Build a RoBERTa and the Linformer with k = n that has its weights, both in float64."""
    config = tiny_config(
        max_position_embeddings=LONGEST,
        projected_length=LONGEST,
        projection_type=projection_type,
        projection_sharing=projection_sharing,
        **fields,
    )
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    shared = {name: getattr(config, name) for name in (*names, "layer_norm_eps")}
    theirs = their_class(
        RobertaConfig(
            **shared,
            max_position_embeddings=LONGEST + PAD + 1,
            type_vocab_size=2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            **fields,
        )
    )
    theirs = enliven(theirs).double().eval()
    ours = our_class(config).double().eval()
    missing, unexpected = ours.load_state_dict(our_tensors(ours, theirs.state_dict()), strict=False)
    assert not unexpected and all("projection" in name for name in missing)
    make_identity(ours)
    return ours, theirs

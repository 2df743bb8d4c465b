"""Tiny dense encoders of every family and head that can be converted."""

import torch
import transformers
from conftest import VOCABULARY, enliven, random_ids


LONGEST = 20
HEADS = (
    "Model",
    "ForMaskedLM",
    "ForPreTraining",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
FAMILIES = ("Bert", "Roberta", "XLMRoberta", "Camembert", "DistilBert", "Electra")
OFFSET_FAMILIES = ("Roberta", "XLMRoberta", "Camembert")
PAIRS = [(family, head) for family in FAMILIES for head in HEADS if hasattr(transformers, family + head)]


def dense_config(family, head="Model", **fields):
    """Describe a tiny dense encoder that reads twenty tokens; no two of its numbers are those of ours by default."""
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "hidden_dropout_prob": 0.25,
        "attention_probs_dropout_prob": 0.15,
    }
    if family == "DistilBert":
        sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "dropout": 0.25, "attention_dropout": 0.15}
    else:
        sizes |= {"layer_norm_eps": 1e-3, "type_vocab_size": 3, "classifier_dropout": 0.35}
    if family == "Electra":
        sizes["embedding_size"] = 16
    labels = {} if head == "ForQuestionAnswering" else {"id2label": {0: "bad", 1: "fair", 2: "good"}}
    offset = 2 if family in OFFSET_FAMILIES else 0
    sizes |= {"vocab_size": VOCABULARY, "max_position_embeddings": LONGEST + offset, **labels, **fields}
    return getattr(transformers, f"{family}Config")(**sizes)


def dense_model(family, head="Model", dtype=torch.float64, **fields):
    model = getattr(transformers, family + head)(dense_config(family, head, **fields))
    return enliven(model).to(dtype).eval()


def inputs_for(family, head, num_tokens=LONGEST):
    ids = random_ids(2, num_tokens)
    ids = torch.stack([ids, ids.flip(-1)], dim=1) if head == "ForMultipleChoice" else ids
    if family == "DistilBert":
        return {"input_ids": ids}
    return {"input_ids": ids, "token_type_ids": torch.arange(num_tokens).expand_as(ids).contiguous() % 3}

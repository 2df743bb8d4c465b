"""What the modules of dense encoders are called, family by family, and which encoders can be converted."""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from ..common.heads import MASKED_LM, head_of_class
from ..configuration_linformer import LinformerConfig
from ..modeling_linformer import LinformerModel, LinformerPreTrainedModel


Names = dict[str, str]  # a dense module's path to ours

EMBEDDINGS = {
    "word_embeddings": "word_embeddings",
    "position_embeddings": "position_embeddings",
    "token_type_embeddings": "token_type_embeddings",
    "LayerNorm": "layer_norm",
}
BERT_LAYER = {
    "attention.self.query": "attention.query",
    "attention.self.key": "attention.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "attention_layer_norm",
    "intermediate.dense": "mlp.intermediate",
    "output.dense": "mlp.output",
    "output.LayerNorm": "mlp_layer_norm",
}
DISTILBERT_LAYER = {
    "attention.q_lin": "attention.query",
    "attention.k_lin": "attention.key",
    "attention.v_lin": "attention.value",
    "attention.out_lin": "attention.output",
    "sa_layer_norm": "attention_layer_norm",
    "ffn.lin1": "mlp.intermediate",
    "ffn.lin2": "mlp.output",
    "output_layer_norm": "mlp_layer_norm",
}
BERT_MASKED_LM = {
    "cls.predictions.transform.dense": "lm_head.dense",
    "cls.predictions.transform.LayerNorm": "lm_head.layer_norm",
    "cls.predictions.decoder": "lm_head.decoder",
    "cls.predictions": "lm_head.decoder",  # its bias, a second time
}
TOKEN_HEADS = {
    "ForTokenClassification": {"classifier": "classifier"},
    "ForQuestionAnswering": {"qa_outputs": "qa_outputs"},
}

SHARED_FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "initializer_range",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "tie_word_embeddings",
    "problem_type",
    "id2label",
    "label2id",
)
BERT_FIELDS = {
    name: name
    for name in (
        "intermediate_size",
        "hidden_act",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "layer_norm_eps",
        "classifier_dropout",
    )
}
DISTILBERT_FIELDS = {
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "classifier_dropout": "seq_classif_dropout",
}

RELATIVE = "its attention uses relative positions, and a slot, which mixes many tokens, has no position"
ROTARY = "it has rotary position embeddings, and a slot, which mixes many tokens, has no position"
NORM_FIRST = "it normalizes before attention and MLP (pre-LayerNorm), a Linformer after them (post-LayerNorm)"
SPARSE = "its attention has windows and global tokens, with weights that a Linformer does not have"
REFUSED_TYPES = {
    "linformer": "it is one already; `linformer resize` changes its n and k",
    "albert": "its layers share their weights, and its embeddings are narrower than its layers",
    "big_bird": SPARSE,
    "deberta": RELATIVE,
    "deberta-v2": RELATIVE,
    "eurobert": ROTARY,
    "longformer": SPARSE,
    "megatron-bert": NORM_FIRST,
    "modernbert": ROTARY,
    "mpnet": RELATIVE,
    "nomic_bert": ROTARY,
    "roberta-prelayernorm": NORM_FIRST,
    "roformer": ROTARY,
    "xlm-roberta-xl": NORM_FIRST,
}


@dataclass(frozen=True)
class Family:
    """What the modules of a family of encoders are called.

    Args:
        body: Attribute that holds the encoder in a model with a head.
        layers: Path of the list of layers in the encoder.
        layer: Modules of a layer, dense name to ours.
        heads: Modules of each head, by the end of its class's name; paths from the whole model.
        fields: Fields of our configuration, and the dense field that each is taken from.
        classifier_activation: Between the two maps of a head that classifies.
        masked_lm_activation: Of the head for masked words, where it does not follow the configuration.
    """

    body: str
    layers: str
    layer: Names
    heads: dict[str, Names]
    fields: Names
    classifier_activation: str
    masked_lm_activation: str | None = None


BERT = Family(
    body="bert",
    layers="encoder.layer",
    layer=BERT_LAYER,
    heads={
        "ForMaskedLM": BERT_MASKED_LM,
        "ForPreTraining": BERT_MASKED_LM,
        "ForSequenceClassification": {"bert.pooler.dense": "classifier.dense", "classifier": "classifier.output"},
        "ForMultipleChoice": {"bert.pooler.dense": "scorer.dense", "classifier": "scorer.output"},
        **TOKEN_HEADS,
    },
    fields=BERT_FIELDS,
    classifier_activation="tanh",
)
ROBERTA = Family(
    body="roberta",
    layers="encoder.layer",
    layer=BERT_LAYER,
    heads={
        "ForMaskedLM": {
            "lm_head.dense": "lm_head.dense",
            "lm_head.layer_norm": "lm_head.layer_norm",
            "lm_head.decoder": "lm_head.decoder",
            "lm_head": "lm_head.decoder",  # its bias, a second time
        },
        "ForSequenceClassification": {
            "classifier.dense": "classifier.dense",
            "classifier.out_proj": "classifier.output",
        },
        "ForMultipleChoice": {"roberta.pooler.dense": "scorer.dense", "classifier": "scorer.output"},
        **TOKEN_HEADS,
    },
    fields=BERT_FIELDS,
    classifier_activation="tanh",
    masked_lm_activation="gelu",
)
DISTILBERT = Family(
    body="distilbert",
    layers="transformer.layer",
    layer=DISTILBERT_LAYER,
    heads={
        "ForMaskedLM": {
            "vocab_transform": "lm_head.dense",
            "vocab_layer_norm": "lm_head.layer_norm",
            "vocab_projector": "lm_head.decoder",
        },
        "ForSequenceClassification": {"pre_classifier": "classifier.dense", "classifier": "classifier.output"},
        "ForMultipleChoice": {"pre_classifier": "scorer.dense", "classifier": "scorer.output"},
        **TOKEN_HEADS,
    },
    fields=DISTILBERT_FIELDS,
    classifier_activation="relu",
)
ELECTRA = Family(
    body="electra",
    layers="encoder.layer",
    layer=BERT_LAYER,
    heads={
        "ForMaskedLM": {
            "generator_predictions.dense": "lm_head.dense",
            "generator_predictions.LayerNorm": "lm_head.layer_norm",
            "generator_lm_head": "lm_head.decoder",
        },
        "ForSequenceClassification": {
            "classifier.dense": "classifier.dense",
            "classifier.out_proj": "classifier.output",
        },
        "ForMultipleChoice": {"sequence_summary.summary": "scorer.dense", "classifier": "scorer.output"},
        **TOKEN_HEADS,
    },
    fields=BERT_FIELDS,
    classifier_activation="gelu",
    masked_lm_activation="gelu",
)
FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
}


def dense_head(class_name: str, family: Family) -> str:
    """Return the end of a dense class's name that a Linformer has a head for, or "Model" for the bare encoder."""
    return next((head for head in family.heads if class_name.endswith(head)), "Model")


def our_class(head: str) -> type[LinformerPreTrainedModel]:
    """Return the class of ours that has a head, as from `dense_head`."""
    return (MASKED_LM if head == "ForPreTraining" else head_of_class(head)).linformer_class


def module_names(dense: PreTrainedModel) -> Names:
    """Map the modules of a dense encoder to the corresponding modules of a Linformer.

    Returns:
        The path of the module in the dense model to its path in ours.
    """
    family = FAMILIES[dense.config.model_type]
    head = dense_head(type(dense).__name__, family)
    theirs = "" if dense.base_model is dense else f"{family.body}."
    ours = "" if our_class(head) is LinformerModel else "linformer."
    body = {f"embeddings.{name}": f"embeddings.{our_name}" for name, our_name in EMBEDDINGS.items()}
    for index in range(dense.config.num_hidden_layers):
        for name, our_name in family.layer.items():
            body[f"{family.layers}.{index}.{name}"] = f"layers.{index}.{our_name}"
    names = {f"{theirs}{name}": f"{ours}{our_name}" for name, our_name in body.items()}
    return names | family.heads.get(head, {})


def translate_config(config: PreTrainedConfig, head: str, **fields: Any) -> LinformerConfig:
    """Make the configuration of the Linformer that takes over the weights of a dense encoder.

    Args:
        config: The dense configuration.
        head: As from `dense_head`.
        **fields: Fields of `LinformerConfig`; they replace those of the dense configuration.
    """
    family = FAMILIES[config.model_type]
    translated = {name: getattr(config, name) for name in SHARED_FIELDS}
    translated |= {name: getattr(config, theirs) for name, theirs in family.fields.items() if hasattr(config, theirs)}
    activation = family.classifier_activation
    if config.model_type == "electra" and head == "ForMultipleChoice":
        activation, translated["classifier_dropout"] = config.summary_activation, config.summary_last_dropout
    if config.model_type == "distilbert" and head == "ForTokenClassification":
        translated["classifier_dropout"] = config.dropout
    return LinformerConfig(**{**translated, "classifier_activation": activation, **fields})


def check_convertible(config: PreTrainedConfig, class_name: str) -> None:
    """Refuse a dense model whose outputs a Linformer with its weights could not reproduce.

    Args:
        config: The dense configuration.
        class_name: The dense class, as in `BertForMaskedLM`.

    Raises:
        ValueError: With the reason.
    """
    name = config.name_or_path or class_name
    reason = refusal(config, class_name)
    if reason is not None:
        raise ValueError(f"{name} ({config.model_type}) cannot become a Linformer: {reason}.")


def refusal(config: PreTrainedConfig, class_name: str) -> str | None:
    """Return why a dense model cannot become a Linformer, or None if it can."""
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantized; convert the model before quantization"
    if config.model_type in REFUSED_TYPES:
        return REFUSED_TYPES[config.model_type]
    if getattr(config, "add_cross_attention", False):
        return "it has cross-attention, which a Linformer does not support"
    decodes = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    if decodes or class_name.endswith(("ForCausalLM", "LMHeadModel")):
        return "it is a decoder, and every slot of a Linformer mixes all positions, so a token would see later ones"
    if config.model_type not in FAMILIES:
        return f"its type is none of {', '.join(FAMILIES)}"
    if getattr(config, "position_embedding_type", "absolute") not in ("absolute", None):
        return f"`position_embedding_type` is {config.position_embedding_type!r}; {RELATIVE}"
    if config.model_type == "electra" and config.embedding_size != config.hidden_size:
        return (
            f"its embeddings are {config.embedding_size} wide and its layers {config.hidden_size}, with a linear map "
            "between them that a Linformer does not have"
        )
    return head_refusal(config, class_name)


def head_refusal(config: PreTrainedConfig, class_name: str) -> str | None:
    """Return why the head of a dense model cannot be taken over, or None if it can."""
    family = FAMILIES[config.model_type]
    head = dense_head(class_name, family)
    fixed = family.masked_lm_activation
    if head == "ForMaskedLM" and fixed is not None and config.hidden_act != fixed:
        return (
            f"its head for masked words has the activation {fixed} and its layers {config.hidden_act}; a Linformer "
            "has one activation for both"
        )
    if head == "ForQuestionAnswering" and config.num_labels != 2:
        return f"its head for answers has {config.num_labels} outputs, and a Linformer's has two, start and end"
    if config.model_type == "electra" and head == "ForMultipleChoice" and not reads_first_token(config):
        return "its head for choices does not read the first token through a linear map and an activation"
    return None


def reads_first_token(config: PreTrainedConfig) -> bool:
    """Tell whether an ELECTRA's head for choices is built as a Linformer's is."""
    return bool(config.summary_type == "first" and config.summary_use_proj and config.summary_activation)


def check_parent(config: PreTrainedConfig, parent_config: PreTrainedConfig, name: str, parent_name: str) -> None:
    """Check by their configurations that a Linformer may have been converted from a dense encoder.

    Args:
        config: Of the Linformer.
        parent_config: Of the dense encoder.
        name: What the Linformer is called in messages.
        parent_name: What the dense encoder is called.

    Raises:
        ValueError: If one is of another family, or they differ in what a conversion keeps.
    """
    if config.model_type != "linformer":
        raise ValueError(f"{name} is a {config.model_type}, not a Linformer; make one with `linformer convert` first.")
    if parent_config.model_type not in FAMILIES:
        raise ValueError(
            f"{parent_name} is a {parent_config.model_type}; take the dense encoder that {name} was made from, one of "
            f"{', '.join(FAMILIES)}."
        )
    for fact in ("vocab_size", "hidden_size", "num_hidden_layers"):
        ours, theirs = getattr(config, fact), getattr(parent_config, fact)
        if ours != theirs:
            raise ValueError(
                f"`{fact}` is {ours} in {name} and {theirs} in {parent_name}; take the dense encoder that the "
                "Linformer was made from."
            )

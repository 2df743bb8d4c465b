"""Small models that the tests of the explorer look at, as folders; imported by each of them."""

import json
from pathlib import Path

import pytest


pytest.importorskip("gradio", reason="gradio is missing: pip install linformer_hf[explore]")
pytest.importorskip("datasets", reason="datasets is missing: pip install linformer_hf[explore]")

from conftest import enliven, tiny_config  # noqa: E402  (these need the packages asked for above)
from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

from linformer_hf import LinformerForMaskedLM  # noqa: E402
from linformer_hf.data.tokenizers import train_tokenizer  # noqa: E402
from linformer_hf.explorer.controls import EXAMPLE  # noqa: E402
from linformer_hf.explorer.tab_answers import MASKED_EXAMPLE  # noqa: E402


NAMES = {0: "good", 1: "bad", 2: "neither"}
MANY_TOKENS = "word " * 2_000_000


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer([EXAMPLE, MASKED_EXAMPLE], 300, 32)


def save(model, tokenizer, folder):
    enliven(model).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def bert_config(tokenizer, id2label=None, **fields):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    id2label = id2label or NAMES
    labels = {"id2label": id2label, "label2id": {name: number for number, name in id2label.items()}}
    return BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes, **labels, **fields)


@pytest.fixture(scope="session")
def linformer(tokenizer, tmp_path_factory):
    """A folder with a Linformer of three layers, whose heads have projections of their own."""
    config = tiny_config(vocab_size=len(tokenizer), num_hidden_layers=3, projection_sharing="none")
    return save(LinformerForMaskedLM(config), tokenizer, tmp_path_factory.mktemp("linformer"))


@pytest.fixture(scope="session")
def classifier(tokenizer, tmp_path_factory):
    """A folder with a dense classifier."""
    model = BertForSequenceClassification(bert_config(tokenizer))
    return save(model, tokenizer, tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="session")
def encoder(tokenizer, tmp_path_factory):
    """A folder with a dense model without a head, which embeds a text by its first token."""
    folder = save(BertModel(bert_config(tokenizer)), tokenizer, tmp_path_factory.mktemp("encoder"))
    steps = [("", "Transformer"), ("1_Pooling", "Pooling")]
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in steps]
    Path(folder, "modules.json").write_text(json.dumps(listed))
    Path(folder, "1_Pooling").mkdir()
    Path(folder, "1_Pooling", "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    return folder


@pytest.fixture(scope="session")
def tagger(tokenizer, tmp_path_factory):
    """A folder with a dense model that classifies tokens."""
    model = BertForTokenClassification(bert_config(tokenizer, {0: "O", 1: "PLACE"}))
    return save(model, tokenizer, tmp_path_factory.mktemp("tagger"))

"""The way from a sentence encoder by name to a faster one that is published, in Python."""

import json

import pytest
import torch
from dense_twins import DOCUMENTS, make_dense, make_tokenizer
from transformers import BertModel

import linformer_hf


TOKENIZER = make_tokenizer()
QUICK = {"max_steps": 20, "batch_size": 4, "learning_rate": 3e-3, "use_cpu": True, "disable_tqdm": True}


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A sentence encoder whose embedding is the first token's state."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    bases = pytest.importorskip("sentence_transformers.base.modules")
    folder = tmp_path_factory.mktemp("parent")
    make_dense(BertModel, TOKENIZER).save_pretrained(folder / "bert")
    TOKENIZER.save_pretrained(folder / "bert")
    steps = [bases.Transformer(str(folder / "bert")), modules.Pooling(16, "cls"), bases.Normalize()]
    sentence_transformers.SentenceTransformer(modules=steps, device="cpu").save(str(folder / "parent"))
    card = "---\nlicense: mit\nlanguage: en\nbase_model: someone/bert\n---\n"
    (folder / "parent" / "README.md").write_text(card)
    return folder / "parent"


def test_a_model_is_converted_taught_loaded_and_ready_to_push(parent, tmp_path):
    from sentence_transformers import SentenceTransformer

    options = {"max_seq_length": 32, "projected_length": 8, "projection_start": "window"}
    linformer_hf.convert_pretrained(str(parent), tmp_path / "linear", **options)
    numbers = linformer_hf.teach(tmp_path / "linear", parent, DOCUMENTS, tmp_path / "taught", **QUICK)
    model = SentenceTransformer(str(tmp_path / "taught"), device="cpu")
    assert isinstance(model[0].auto_model, linformer_hf.LinformerModel)
    assert model[1].pooling_mode == "cls"
    assert linformer_hf.push(tmp_path / "taught", "you/taught", dry_run=True) is None

    assert numbers["embedding_cosine_32"] > numbers["initial_embedding_cosine"]
    for length in (16, 32):
        assert numbers[f"speedup_{length}"] > 0
        assert 0 < numbers[f"embedding_cosine_{length}"] <= 1
    record = json.loads((tmp_path / "taught" / "results.json").read_text())
    assert record["about"]["base_model"] == "someone/bert"
    assert record["about"]["license"] == "mit"
    assert record["about"]["pipeline_tag"] == "sentence-similarity"
    assert record["about"]["dataset"] == "57 texts"

    texts = DOCUMENTS[:6]
    ours, theirs = (
        torch.from_numpy(SentenceTransformer(str(folder), device="cpu").encode(texts))
        for folder in (tmp_path / "taught", parent)
    )
    before = torch.from_numpy(SentenceTransformer(str(tmp_path / "linear"), device="cpu").encode(texts))
    assert torch.cosine_similarity(ours, theirs).mean() > torch.cosine_similarity(before, theirs).mean()


def test_a_finished_call_repeated_trains_nothing(parent, tmp_path):
    linformer_hf.convert_pretrained(str(parent), tmp_path / "linear", max_seq_length=32, projected_length=8)
    options = {**QUICK, "max_steps": 2}
    linformer_hf.teach(tmp_path / "linear", parent, DOCUMENTS, tmp_path / "taught", **options)
    before = (tmp_path / "taught" / "model.safetensors").read_bytes()
    linformer_hf.teach(tmp_path / "linear", parent, DOCUMENTS, tmp_path / "taught", **options)
    assert (tmp_path / "taught" / "model.safetensors").read_bytes() == before


def test_a_single_text_is_refused(parent, tmp_path):
    with pytest.raises(ValueError, match="`texts` holds 1 texts; give at least two"):
        linformer_hf.teach(parent, parent, ["A text.", "  "], tmp_path / "taught")

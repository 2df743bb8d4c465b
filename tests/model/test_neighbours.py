"""Other libraries that users combine with the models: pipelines, sentence-transformers, peft, streamed data sets."""

from itertools import islice

import pytest
import torch
from conftest import tiny_config
from datasets import load_dataset
from peft import LoraConfig, PeftModel, get_peft_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoModelForSequenceClassification, pipeline

import linformer_hf
from linformer_hf.data.blocks import pack_blocks, read_once
from linformer_hf.data.masking import MaskingCollator
from linformer_hf.data.tokenizers import train_tokenizer
from linformer_hf.sharing.hub import save_for_hub


TEXTS = [f"The cat sees {number} boats on the river." for number in range(20)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 300, 32)


@pytest.fixture(scope="module")
def folders(tokenizer, tmp_path_factory):
    """A saved model for each head, by the name of its class."""
    torch.manual_seed(0)
    heads = [name for name in linformer_hf.__all__ if name.startswith("LinformerFor")] + ["LinformerModel"]
    return {
        name: save_for_hub(
            getattr(linformer_hf, name)(tiny_config(vocab_size=len(tokenizer))),
            tokenizer,
            tmp_path_factory.mktemp("heads") / name,
        )
        for name in heads
    }


@pytest.mark.parametrize(
    ("task", "head", "key"),
    [
        ("fill-mask", "LinformerForMaskedLM", "token_str"),
        ("text-classification", "LinformerForSequenceClassification", "label"),
        ("token-classification", "LinformerForTokenClassification", "entity"),
    ],
)
def test_a_pipeline_gives_a_result_for_each_head(folders, task, head, key):
    ask = pipeline(task, model=str(folders[head]), device="cpu")
    assert isinstance(ask("The <mask> sees boats.")[0][key], str)


def test_feature_extraction_gives_a_vector_for_each_token_whatever_the_batch(folders, tokenizer):
    ask = pipeline("feature-extraction", model=str(folders["LinformerModel"]), device="cpu")
    alone = [torch.tensor(ask(text)[0]) for text in ("The cat.", TEXTS[0])]
    together = [torch.tensor(found[0]) for found in ask(["The cat.", TEXTS[0]], batch_size=2)]
    for one, other, text in zip(alone, together, ("The cat.", TEXTS[0])):
        num_tokens = len(tokenizer(text)["input_ids"])
        torch.testing.assert_close(other[:num_tokens], one[:num_tokens], rtol=1e-5, atol=1e-5)


def test_sentence_embeddings_do_not_depend_on_the_batch_and_are_the_same_after_saving(folders, tmp_path):
    body = Transformer(str(folders["LinformerModel"]))
    model = SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension(), "mean")], device="cpu")
    alone, together = model.encode(["The cat."]), model.encode(["The cat.", TEXTS[0]])
    assert together[0] == pytest.approx(alone[0], abs=1e-5)
    model.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(["The cat."])
    assert again[0] == pytest.approx(alone[0], abs=1e-6)


@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value", "layerwise"])
def test_lora_trains_saves_and_merges_with_the_projection_as_a_saved_module(folders, tmp_path, sharing):
    torch.manual_seed(0)
    base = linformer_hf.LinformerForSequenceClassification(tiny_config(projection_sharing=sharing))
    base.save_pretrained(tmp_path / "base")
    names = {"none": ("key_projection", "value_projection"), "headwise": ("key_projection", "value_projection")}
    saved = [*names.get(sharing, ("projection",)), "classifier"]
    adapter = LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=list(saved), task_type="SEQ_CLS")
    model = get_peft_model(base, adapter)
    batch = {"input_ids": torch.tensor([[0, 7, 9, 2], [0, 8, 2, 1]]), "labels": torch.tensor([0, 1])}
    batch["attention_mask"] = (batch["input_ids"] != 1).long()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    before = model(**batch).loss.item()
    for _ in range(10):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is not None}
    untrained = [part for part in ("lora_A", "lora_B", *saved) if not any(part in name for name in trained)]
    assert untrained == []
    model.eval()
    with torch.no_grad():
        logits = model(**batch).logits
        assert model(**batch).loss.item() < before
        model.save_pretrained(tmp_path / "adapter")
        fresh = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
        loaded = PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
        torch.testing.assert_close(loaded(**batch).logits, logits, rtol=1e-5, atol=1e-6)
        merged = loaded.merge_and_unload()
        torch.testing.assert_close(merged(**batch).logits, logits, rtol=1e-5, atol=1e-5)
        merged.save_pretrained(tmp_path / "merged")
        plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
        torch.testing.assert_close(plain(**batch).logits, logits, rtol=1e-5, atol=1e-5)


def test_a_streamed_data_set_becomes_batches(tokenizer, tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS) + "\n")
    stream = load_dataset("text", data_files=str(tmp_path / "corpus.txt"), split="train", streaming=True)
    blocks = read_once(pack_blocks(stream, tokenizer, 32))
    batch = MaskingCollator(tokenizer, 0.15, seed=0)(list(islice(blocks, 2)))
    assert batch["input_ids"].shape == batch["labels"].shape == (2, 32)

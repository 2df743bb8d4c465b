"""A converted sentence encoder is loaded and embeds as its parent does, by Sentence Transformers itself."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import random_like
from dense_twins import DOCUMENTS, make_dense, make_tokenizer
from huggingface_hub import ModelCard
from transformers import AutoModelForSequenceClassification, BertModel

import linformer_hf
from linformer_hf.conversion.checkpoint_conversion import convert_pretrained
from linformer_hf.conversion.checkpoint_resizing import ResizingArguments, resize_checkpoint
from linformer_hf.conversion.embeddings import POOLINGS, TextEmbedding, read_embedding


sentence_transformers = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
dense_modules = pytest.importorskip("sentence_transformers.base.modules")

TOKENIZER = make_tokenizer()
LONGEST = 32
INPUTS = Path(__file__).parents[3] / "shared" / "data" / "inputs" / "cls_sentence_encoder"
TEXTS = [" ".join(DOCUMENTS[0].split()[:words]) for words in range(1, 40, 3)]


def save_sentence_encoder(folder, pooling="mean", extra=(), prompts=None):
    """Save a small BERT as Sentence Transformers saves it."""
    make_dense(BertModel, TOKENIZER).save_pretrained(folder / "bert")
    TOKENIZER.save_pretrained(folder / "bert")
    transformer = dense_modules.Transformer(str(folder / "bert"), max_seq_length=LONGEST)
    steps = [transformer, modules.Pooling(16, pooling), *extra]
    model = sentence_transformers.SentenceTransformer(modules=steps, prompts=prompts, device="cpu")
    model.save(str(folder / "parent"))
    return folder / "parent"


def embeddings(folder, texts=TEXTS, **options):
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return torch.from_numpy(model.encode(texts, **options)), model


def assert_same_embeddings(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooling", [*POOLINGS, ("cls", "max")], ids=str)
def test_with_a_slot_for_each_token_the_embeddings_are_those_of_the_parent(pooling, tmp_path):
    parent = save_sentence_encoder(tmp_path, pooling, [dense_modules.Normalize()])
    convert_pretrained(str(parent), tmp_path / "linear", projected_length=LONGEST)
    (ours, model), (theirs, _) = embeddings(tmp_path / "linear"), embeddings(parent)
    lengths = {len(ids) for ids in TOKENIZER(TEXTS)["input_ids"]}
    assert min(lengths) < 6 and max(lengths) > LONGEST
    assert_same_embeddings(ours, theirs)
    assert isinstance(model[0].auto_model, linformer_hf.LinformerModel)
    for text, wanted in zip(TEXTS, theirs):
        assert_same_embeddings(torch.from_numpy(model.encode([text])[0]), wanted)


def test_linear_maps_and_prompts_are_carried_over(tmp_path):
    extra = [dense_modules.Dense(16, 6), dense_modules.Normalize()]
    parent = save_sentence_encoder(tmp_path, "mean", extra, {"query": "The cat: ", "document": ""})
    report = convert_pretrained(str(parent), tmp_path / "linear", projected_length=LONGEST)
    (ours, model), (theirs, _) = (embeddings(folder, prompt_name="query") for folder in (tmp_path / "linear", parent))
    assert ours.shape == (len(TEXTS), 6)
    assert_same_embeddings(ours, theirs)
    assert model.prompts["query"] == "The cat: "
    assert any("Carried over: modules.json, 1_Pooling, 2_Dense, 3_Normalize" in note for note in report.notes)


@pytest.mark.parametrize("pooling", [*POOLINGS, ("cls", "max")], ids=str)
def test_an_embedding_is_read_from_the_folder_and_computed_as_sentence_transformers_does(pooling, tmp_path):
    parent = save_sentence_encoder(tmp_path, pooling, [dense_modules.Dense(16 * (1 + isinstance(pooling, tuple)), 6)])
    embedding = read_embedding(parent)
    _, model = embeddings(parent)
    states = random_like(torch.empty(3, 9, 16))
    mask = (torch.arange(9) < torch.tensor([[9], [4], [1]])).long()
    features = {"token_embeddings": states, "attention_mask": mask}
    for step in list(model)[1:]:
        features = step(features)
    torch.testing.assert_close(embedding(states, mask), features["sentence_embedding"].detach())


def test_old_settings_of_poolings_are_read_in_their_order(tmp_path):
    parent = save_sentence_encoder(tmp_path)
    old = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    (parent / "1_Pooling" / "config.json").write_text(json.dumps(old))
    assert read_embedding(parent).poolings == ("cls", "mean")
    (parent / "1_Pooling" / "config.json").write_text('{"pooling_mode": "median"}')
    with pytest.raises(ValueError, match="asks for the pooling 'median'; supported are cls"):
        read_embedding(parent)


def test_a_folder_without_steps_embeds_by_the_mean(tmp_path):
    assert read_embedding(tmp_path) == TextEmbedding(("mean",))


def test_a_step_that_is_not_supported_is_refused_by_name_and_nothing_is_written(tmp_path):
    parent = save_sentence_encoder(tmp_path, extra=[modules.LayerNorm(16)])
    with pytest.raises(ValueError, match=r"LayerNorm, which is not supported"):
        convert_pretrained(str(parent), tmp_path / "linear", projected_length=LONGEST)
    assert not (tmp_path / "linear").exists()


def test_an_encoder_in_a_folder_of_its_own_moves_to_the_top(tmp_path):
    parent = save_sentence_encoder(tmp_path, "cls")
    old = tmp_path / "old"
    (old / "0_Transformer").mkdir(parents=True)
    for path in list(parent.iterdir()):
        of_model = path.name in ("modules.json", "1_Pooling", "config_sentence_transformers.json")
        shutil.move(path, old / path.name if of_model else old / "0_Transformer" / path.name)
    listed = json.loads((old / "modules.json").read_text())
    (old / "modules.json").write_text(json.dumps([{**listed[0], "path": "0_Transformer"}, *listed[1:]]))
    convert_pretrained(str(old), tmp_path / "linear", projected_length=LONGEST)
    assert_same_embeddings(embeddings(tmp_path / "linear")[0], embeddings(old)[0])


@pytest.mark.parametrize(("pooling", "classifier_pooling"), [("mean", "mean"), ("cls", "cls"), ("max", "cls")])
def test_classifiers_pool_as_the_embedding_does(pooling, classifier_pooling, tmp_path):
    parent = save_sentence_encoder(tmp_path, pooling)
    report = convert_pretrained(str(parent), tmp_path / "linear", projected_length=LONGEST)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "linear", num_labels=3)
    assert model.config.classifier_pooling == classifier_pooling
    assert any("pool by the mean over tokens" in note for note in report.notes) == (pooling == "mean")


def test_the_longest_text_is_the_parents_or_the_one_asked_for(tmp_path):
    parent = save_sentence_encoder(tmp_path)
    settings = {"max_seq_length": 20, "do_lower_case": False}
    (parent / "sentence_bert_config.json").write_text(json.dumps(settings))
    convert_pretrained(str(parent), tmp_path / "same", projected_length=LONGEST)
    convert_pretrained(str(parent), tmp_path / "longer", max_seq_length=64, projected_length=16)
    assert_same_embeddings(embeddings(tmp_path / "same")[0], embeddings(parent)[0])
    longer, model = embeddings(tmp_path / "longer")
    assert model.max_seq_length == 64
    assert (longer[-1] - longer[-2]).abs().max() > 1e-4  # they differ behind their thirtieth token
    written = json.loads((tmp_path / "longer" / "sentence_bert_config.json").read_text())
    assert written == {**settings, "max_seq_length": 64}


def test_the_card_names_license_language_and_origin(tmp_path):
    parent = save_sentence_encoder(tmp_path)
    card = "---\nlicense: apache-2.0\nlanguage: en\nbase_model: someone/bert\n---\n# A model\n"
    (parent / "README.md").write_text(card)
    (parent / "data_config.json").write_text("[]")
    report = convert_pretrained(str(parent), tmp_path / "linear", projected_length=LONGEST)
    about = json.loads((tmp_path / "linear" / "results.json").read_text())["about"]
    assert (about["license"], about["language"], about["base_model"]) == ("apache-2.0", "en", "someone/bert")
    assert about["pipeline_tag"] == "sentence-similarity"
    assert "apache-2.0" in (tmp_path / "linear" / "README.md").read_text()
    assert "Left behind: data_config.json." in report.notes


def test_a_longer_sentence_encoder_embeds_short_texts_as_before_and_its_teacher_is_named(tmp_path, caplog):
    parent = save_sentence_encoder(tmp_path, "max")
    (parent / "README.md").write_text("---\nlicense: mit\nbase_model: someone/bert\n---\n# A model\n")
    convert_pretrained(str(parent), tmp_path / "linear", projected_length=8, projection_sharing="key_value")
    with caplog.at_level(logging.INFO):
        resize_checkpoint(
            ResizingArguments(
                model_name_or_path=str(tmp_path / "linear"),
                output_dir=str(tmp_path / "long"),
                max_seq_length=64,
                projected_length=[16],
            )
        )
    command = next(line for line in caplog.messages if line.startswith("linformer distill"))
    assert f"--teacher_name_or_path {parent} " in command and f"--model_name_or_path {tmp_path}/long " in command
    before, _ = embeddings(tmp_path / "linear", TEXTS[:6])
    after, model = embeddings(tmp_path / "long", TEXTS[:6])
    assert model.max_seq_length == 64
    assert_same_embeddings(after, before)
    about = json.loads((tmp_path / "long" / "results.json").read_text())["about"]
    assert (about["license"], about["base_model"]) == ("mit", "someone/bert")
    assert about["pipeline_tag"] == "sentence-similarity"


def test_the_code_in_the_card_of_a_sentence_encoder_runs(tmp_path):
    parent = save_sentence_encoder(tmp_path)
    convert_pretrained(str(parent), tmp_path / "linear", projected_length=LONGEST)
    card = ModelCard((tmp_path / "linear" / "README.md").read_text())
    assert (card.data.library_name, card.data.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    blocks = re.findall(r"^```python\n(.*?)^```", card.text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names = {}
    for block in blocks:
        exec(block.replace("OWNER/NAME", str(tmp_path / "linear")), names)
    assert type(names["model"]).__name__ == "LinformerModel"
    assert_same_embeddings(
        torch.from_numpy(names["embeddings"]), embeddings(parent, ["A sentence.", "Another one."])[0]
    )


def test_a_converted_sentence_encoder_loads_without_the_package(tmp_path):
    parent = save_sentence_encoder(tmp_path, "cls", [dense_modules.Normalize()])
    convert_pretrained(str(parent), tmp_path / "linear", projected_length=LONGEST)
    code = (
        "import sys\n"
        "from sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer(sys.argv[1], device='cpu', trust_remote_code=True)\n"
        "assert 'linformer_hf' not in sys.modules\n"
        f"print(model.encode([{TEXTS[3]!r}])[0].tolist())\n"
    )
    environment = os.environ | {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, str(tmp_path / "linear")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_same_embeddings(torch.tensor(json.loads(done.stdout)), embeddings(parent, [TEXTS[3]])[0][0])


def test_the_made_up_encoder_with_its_first_token_as_embedding_keeps_its_embeddings(tmp_path):
    if not INPUTS.is_dir():
        pytest.skip("the sentence encoder among the shared inputs is missing")
    convert_pretrained(str(INPUTS), tmp_path / "linear", projected_length=LONGEST)
    words = json.loads((INPUTS / "tokenizer.json").read_text())["model"]["vocab"]
    texts = [" ".join(list(words)[-length:]) for length in range(1, LONGEST + 5, 4)]
    assert_same_embeddings(embeddings(tmp_path / "linear", texts)[0], embeddings(INPUTS, texts)[0])


def test_a_half_is_padded_or_not_and_embeds_alike():
    embedding = TextEmbedding(("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"))
    states = random_like(torch.empty(2, 9, 4)).to(torch.bfloat16)
    mask = (torch.arange(9) < 5).long().expand(2, -1)
    assert torch.equal(embedding(states, mask), embedding(states[:, :5]))
    assert embedding(states).dtype == torch.float32

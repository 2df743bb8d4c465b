"""Cards: rendered from records, true to them, and left alone once a person has edited them."""

import json
import math
import re
import sys
from pathlib import Path

import loopback_hub
import pytest
from conftest import tiny_config
from huggingface_hub import HfApi, ModelCard
from transformers import TrainingArguments

from linformer_hf import LinformerForMaskedLM
from linformer_hf.common.records import read_results, write_results
from linformer_hf.data.tokenizers import train_tokenizer
from linformer_hf.sharing.card import origin_facts, render_card, write_card
from linformer_hf.sharing.hub import save_for_hub
from linformer_hf.training.pretraining import PretrainingArguments, pretrain


CARDS = Path(__file__).parents[2] / "model_cards"
ABOUT = {
    "pipeline_tag": "fill-mask",
    "dataset": "twenty sentences",
    "dataset_type": "text",
    "metrics": ["perplexity"],
    "license": "other",
    "license_name": "of-our-own",
    "license_link": "LICENSE.md",
    "language": ["en", "de"],
    "base_model": "owner/base",
}


def record(folder, numbers, command="linformer pretrain", about=ABOUT):
    sys.argv[:] = command.split()
    write_results(folder, numbers, (), about)
    return write_card(folder).read_text()


@pytest.fixture(autouse=True)
def argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", [])


def test_a_card_holds_the_numbers_of_its_record_and_no_others(tmp_path):
    text = record(tmp_path, {"perplexity": 12.5, "seconds": 3.25})
    card = ModelCard(text)
    assert card.data.eval_results[0].metric_value == 12.5
    results = card.text[card.text.index("## Results") : card.text.index("## Limits")]
    assert re.findall(r"[0-9.]*[0-9]", results) == ["12.5", "3.25"]


def test_the_metadata_says_license_language_and_origin(tmp_path):
    data = ModelCard(record(tmp_path, {})).data
    assert (data.license, data.license_name, data.license_link) == ("other", "of-our-own", "LICENSE.md")
    assert (data.language, data.base_model) == (["en", "de"], "owner/base")
    assert (data.library_name, data.pipeline_tag) == ("transformers", "fill-mask")


def test_a_card_follows_its_record(tmp_path):
    record(tmp_path, {"perplexity": 12.5, "train_runtime": 1.0}, "linformer pretrain --do_train")
    text = record(tmp_path, {"hidden_perplexity": 15.5}, "linformer pretrain --do_eval")
    assert "| perplexity | 12.5 |" in text
    assert "| hidden perplexity | 15.5 |" in text
    assert "linformer pretrain --do_train\nlinformer pretrain --do_eval\n" in text
    assert "| perplexity | 11 |" in record(tmp_path, {"perplexity": 11.0})


@pytest.mark.parametrize("has_record", [True, False])
def test_a_card_that_a_person_wrote_or_edited_stays(tmp_path, has_record):
    if has_record:
        record(tmp_path, {"perplexity": 12.5})
    with (tmp_path / "README.md").open("a") as card:
        card.write("What we learned from it.")
    written = (tmp_path / "README.md").read_text()
    assert record(tmp_path, {"perplexity": 11.0}) == written
    assert read_results(tmp_path)["numbers"] == {"perplexity": 11.0}


def test_results_are_of_the_text_that_they_were_measured_on(tmp_path):
    text = record(tmp_path, {"perplexity": 12.5}, about={**ABOUT, "measured_on": "ten other sentences"})
    assert ModelCard(text).data.eval_results[0].dataset_name == "ten other sentences"
    assert "Data: twenty sentences. Measured on ten other sentences. Started from owner/base." in text


def test_infinity_is_in_the_table_and_not_in_the_metadata(tmp_path):
    text = record(tmp_path, {"perplexity": math.inf, "loss": math.nan, "old": None})
    assert "| loss | not a number |\n| old | unavailable |\n| perplexity | infinite |" in text
    assert "model-index" not in text


def test_a_card_holds_no_secret_of_an_old_record():
    token = "hf_" + "aBcD" * 8
    old = {"command": f"python scripts/run_mlm.py --hub_token {token}", "numbers": {}, "device": "CPU"}
    assert token not in render_card({**old, "arguments": {"hub_token": token}, "about": {"dataset": token}}, "tiny")


def test_a_card_without_a_record_has_no_results():
    card = render_card({}, "bare")
    assert "## Results" not in card
    assert "model-index" not in card
    assert "trust_remote_code=True" in card


@pytest.mark.parametrize("name", ["quickstart", "minilm-linear", "minilm-2048"])
def test_a_published_card_is_what_its_record_renders_to(name):
    published = read_results(CARDS / name)
    assert (CARDS / name / "README.md").read_text() == render_card(published, name)


def test_what_a_model_came_from_is_read_off_its_folder(tmp_path):
    assert origin_facts(None) == origin_facts(str(tmp_path)) == {}
    (tmp_path / "results.json").write_text(
        json.dumps({"numbers": {}, "about": {"base_model": "a/b", "license": None}})
    )
    assert origin_facts(str(tmp_path)) == {"base_model": "a/b"}
    (tmp_path / "README.md").write_text("---\nlicense: mit\nlanguage: en\ntags: [x]\n---\n# A\n")
    assert origin_facts(str(tmp_path)) == {"license": "mit", "language": "en", "base_model": "a/b"}
    (tmp_path / "README.md").write_text("---\nlicense: [\n---\n# A\n")
    assert origin_facts(str(tmp_path)) == {}


def test_a_trained_model_says_whose_it_is(tmp_path):
    """License, language and origin of the model that it started from, which a local folder names in its card."""
    texts = [f"Line {number} of boats, of {number % 7} rivers and of {number % 5} bridges." for number in range(200)]
    (tmp_path / "corpus.txt").write_text("\n".join(texts))
    tokenizer = train_tokenizer(texts, 300, 32)
    model = LinformerForMaskedLM(tiny_config(vocab_size=len(tokenizer)))
    parent = save_for_hub(model, tokenizer, tmp_path / "parent")
    card = ModelCard((parent / "README.md").read_text())
    card.data.license, card.data.language, card.data.base_model = "mit", "en", "owner/grandparent"
    card.save(parent / "README.md")
    arguments = PretrainingArguments(
        train_file=[str(tmp_path / "corpus.txt")], model_name_or_path=str(parent), max_seq_length=16
    )
    training = TrainingArguments(
        output_dir=str(tmp_path / "run"), do_train=True, max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True
    )
    pretrain(arguments, training)
    data = ModelCard((tmp_path / "run" / "README.md").read_text()).data
    assert (data.license, data.language, data.base_model) == ("mit", "en", "owner/grandparent")


def test_what_a_model_came_from_is_read_off_the_hub(tmp_path):
    with loopback_hub.serve(tmp_path / "hub") as hub, hub.connected(tmp_path / "cache"):
        api = HfApi()
        api.create_repo("owner/bare")
        api.create_repo("owner/parent")
        card = b"---\nlicense: mit\nlanguage: [en]\nbase_model: owner/grandparent\n---\n# A\n"
        api.upload_file(repo_id="owner/parent", path_in_repo="README.md", path_or_fileobj=card)
        assert origin_facts("owner/parent") == {"license": "mit", "language": ["en"], "base_model": "owner/parent"}
        assert origin_facts("owner/bare") == {"base_model": "owner/bare"}
        assert origin_facts("owner/nowhere") == {"base_model": "owner/nowhere"}

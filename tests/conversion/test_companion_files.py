"""The files beside the weights of a model: downloaded, copied, refused or named."""

import json
import logging

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from linformer_hf.conversion import companion_files
from linformer_hf.conversion.companion_files import about_parent, left_behind, local_folder
from linformer_hf.conversion.embeddings import read_modules


def listed(*modules):
    paths = [(kind, "" if number == 0 else f"{number}_{kind}") for number, kind in enumerate(modules)]
    return json.dumps(
        [{"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in paths]
    )


def test_small_files_and_the_folders_of_the_steps_are_fetched_and_no_others(tmp_path, monkeypatch):
    asked = []

    def fetch(name, revision, token, allow_patterns):
        asked.append((name, revision, token, allow_patterns))
        (tmp_path / "modules.json").write_text(listed("Transformer", "Pooling", "Normalize"))
        return str(tmp_path)

    monkeypatch.setattr(companion_files, "snapshot_download", fetch)
    assert local_folder("you/encoder", "v2", "secret") == tmp_path
    assert asked == [
        ("you/encoder", "v2", "secret", ["*.json", "README.md"]),
        ("you/encoder", "v2", "secret", ["1_Pooling/*", "2_Normalize/*"]),
    ]


def test_a_hub_that_cannot_be_reached_is_logged(monkeypatch, caplog):
    def fail(*arguments, **options):
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(companion_files, "snapshot_download", fail)
    monkeypatch.setattr(logging.getLogger("linformer_hf"), "propagate", True)
    with caplog.at_level("WARNING", logger="linformer_hf"):
        assert local_folder("you/encoder") is None
    assert "beside the weights of you/encoder cannot be downloaded" in caplog.text


def test_a_model_on_the_hub_is_its_own_origin_and_a_folder_names_one(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\nbase_model: someone/bert\n---\n")
    assert about_parent("you/encoder", tmp_path) == {"license": "mit", "base_model": "you/encoder"}
    assert about_parent(str(tmp_path), tmp_path) == {"license": "mit", "base_model": "someone/bert"}
    assert about_parent("you/encoder", None) == {"base_model": "you/encoder"}
    for card in ("# A card without metadata\n", "---\nlicense: [\n---\n# A card with damaged metadata\n"):
        (tmp_path / "README.md").write_text(card)
        assert about_parent(str(tmp_path), tmp_path) == {"base_model": None}
        assert about_parent("you/encoder", tmp_path) == {"base_model": "you/encoder"}


def test_files_that_a_converted_model_lacks_are_named(tmp_path):
    for name in ("config.json", "tokenizer.json", "vocab.txt", "model.safetensors", "README.md", "heads.pt"):
        (tmp_path / name).write_text("")
    for name in ("results.json", "configuration_linformer.py", "modeling_linformer.py"):  # of a Linformer
        (tmp_path / name).write_text("")
    (tmp_path / "onnx").mkdir()
    assert left_behind(tmp_path) == ["heads.pt", "onnx"]


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (("Transformer", "Pooling", "LSTM"), "lists sentence_transformers.models.LSTM, which is not supported"),
        (("Pooling", "Transformer"), "lists Pooling, Transformer; supported are a Transformer, then a Pooling"),
        (("Transformer",), "lists Transformer; supported"),
    ],
)
def test_steps_that_are_not_supported_are_refused_by_name(tmp_path, modules, message):
    (tmp_path / "modules.json").write_text(listed(*modules))
    with pytest.raises(ValueError, match=message):
        read_modules(tmp_path)


@pytest.mark.parametrize("path", ["../other", "/etc", "1_Pooling/../.."])
def test_a_step_outside_of_the_folder_is_refused(tmp_path, path):
    step = {"path": path, "type": "sentence_transformers.models.Pooling"}
    (tmp_path / "modules.json").write_text(json.dumps([step]))
    with pytest.raises(ValueError, match=f"lists the folder {path}, which lies outside"):
        read_modules(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("modules.json", "{", r"modules\.json is not JSON"),
        ("modules.json", '{"a": 1}', r"modules\.json holds a JSON dict, not a list"),
        ("modules.json", '[{"path": ""}]', r"modules\.json lists .*; a step has a `type` and a `path`"),
        ("1_Pooling/config.json", "[]", r"config\.json holds a JSON list, not an object"),
        ("1_Pooling/config.json", '{"pooling_mode": 5}', "asks for the pooling 5; supported are cls"),
        ("sentence_bert_config.json", "[]", r"sentence_bert_config\.json holds a JSON list"),
    ],
)
def test_damaged_settings_are_named(tmp_path, file, text, message):
    (tmp_path / "modules.json").write_text(listed("Transformer", "Pooling"))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text("{}")
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        companion_files.carry_over(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_normalization_of_token_states_is_refused(tmp_path):
    (tmp_path / "modules.json").write_text(listed("Transformer", "Pooling", "Normalize"))
    for folder, settings in (("1_Pooling", {}), ("2_Normalize", {"module_input_name": "token_embeddings"})):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="2_Normalize reads or writes token_embeddings"):
        companion_files.read_embedding(tmp_path)

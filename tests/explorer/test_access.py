"""What visitors may load: strangers listed checkpoints and small public models, others any folder."""

import fnmatch
import json
import os
import shutil
from functools import partial
from pathlib import Path

import gradio as gr
import loopback_hub
import pytest
import torch
from explored import (
    EXAMPLE,
    bert_config,
    classifier,  # noqa: F401 (a fixture)
    encoder,  # noqa: F401 (a fixture)
    linformer,  # noqa: F401 (a fixture)
    save,
    tokenizer,  # noqa: F401 (a fixture)
)
from httpx import Request, Response
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import ModelInfo
from transformers import BertForMaskedLM

from linformer_hf.explorer import public_models, store
from linformer_hf.explorer.checkpoints import UNTRAINED, describe, load_checkpoint, tokenize
from linformer_hf.explorer.page import ExplorerArguments, build_page, explore, is_local
from linformer_hf.explorer.public_models import MOST_BYTES, MOST_LAYERS, load_public_model
from linformer_hf.explorer.store import MOST_KEPT, CheckpointStore
from linformer_hf.explorer.tab_rank import REAL, show_rank


class FakeHub:
    """The part of `HfApi` that the page calls, over folders; it notes what is asked for and with which token."""

    def __init__(self):
        self.folders, self.sizes, self.asked, self.fetched, self.tokens = {}, {}, [], [], []

    def __call__(self, token=None):
        self.tokens.append(token)
        return self

    def model_info(self, name, *, files_metadata, timeout, token):
        self.asked.append(name)
        self.tokens.append(token)
        assert files_metadata and timeout
        if name not in self.folders:
            raise RepositoryNotFoundError("401", response=Response(401, request=Request("GET", "https://hub")))
        root = Path(self.folders[name])
        files = {file.relative_to(root).as_posix(): file.stat().st_size for file in root.rglob("*") if file.is_file()}
        files |= self.sizes
        siblings = [{"rfilename": file, "size": size} for file, size in files.items()]
        return ModelInfo(id=name, sha="0" * 40, tags=[], siblings=siblings)

    def snapshot_download(self, name, *, revision, local_dir, allow_patterns, token):
        self.tokens.append(token)
        assert revision == "0" * 40
        for file in Path(self.folders[name]).rglob("*"):
            path = file.relative_to(self.folders[name]).as_posix()
            if file.is_file() and any(fnmatch.fnmatch(path, pattern) for pattern in allow_patterns):
                self.fetched.append(path)
                Path(local_dir, path).parent.mkdir(exist_ok=True)
                shutil.copy(file, Path(local_dir, path))


@pytest.fixture
def hub(monkeypatch):
    fake = FakeHub()
    monkeypatch.setattr(public_models, "HfApi", fake)
    return fake


@pytest.fixture(scope="module")
def words(tokenizer, tmp_path_factory):  # noqa: F811
    """A folder with a small dense model."""
    return save(BertForMaskedLM(bert_config(tokenizer)), tokenizer, tmp_path_factory.mktemp("words"))


@pytest.mark.parametrize(
    ("host", "share", "variables", "expected"),
    [
        (None, False, {}, True),
        ("127.0.0.1", False, {}, True),
        ("localhost", False, {}, True),
        ("::1", False, {}, True),
        ("0.0.0.0", False, {}, False),
        ("192.168.1.7", False, {}, False),
        ("", False, {"GRADIO_SERVER_NAME": "0.0.0.0"}, False),
        (None, False, {"GRADIO_SERVER_NAME": "0.0.0.0"}, False),
        ("127.0.0.1", True, {}, False),
        ("127.0.0.1", False, {"SPACE_ID": "you/linformer"}, False),
    ],
)
def test_only_the_local_address_is_local(monkeypatch, host, share, variables, expected):
    for name in ("GRADIO_SERVER_NAME", "SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_local(host, share) is expected


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "a folder on this computer"),
        ({"public": True}, "at most 600 MB of files and 150 million parameters"),
        ({"host": "0.0.0.0"}, "at most 600 MB of files and 150 million parameters"),
    ],
)
def test_the_page_says_what_visitors_may_load(monkeypatch, changes, said):
    pages = []
    monkeypatch.setattr(gr.Blocks, "launch", lambda page, **options: pages.append((page, options)))
    explore(ExplorerArguments(model_name_or_path=UNTRAINED, **changes))
    (page, options), *_ = pages
    (dropdown,) = [block for block in page.blocks.values() if isinstance(block, gr.Dropdown)]
    assert said in dropdown.info and "No code of a checkpoint is run" in dropdown.info
    assert ("without an access token" in dropdown.info) == bool(changes)
    assert options["share"] is False
    assert options["server_name"] == changes.get("host", "127.0.0.1")


def test_a_page_is_for_strangers_unless_something_else_is_asked_for():
    (dropdown,) = [block for block in build_page([UNTRAINED]).blocks.values() if isinstance(block, gr.Dropdown)]
    assert "without an access token" in dropdown.info


def test_a_stranger_loads_no_folder_of_the_server(hub, linformer, tmp_path, monkeypatch):  # noqa: F811
    shutil.copytree(linformer, tmp_path / "runs" / "quickstart")
    monkeypatch.chdir(tmp_path)
    shelf = CheckpointStore([UNTRAINED], is_public=True)
    inside = os.path.relpath(linformer, tmp_path)
    for name in (linformer, inside, f"file://{linformer}", "~/model", "runs/../runs", ".", "..", "/", "quickstart"):
        with pytest.raises(ValueError, match="is not the name of a repository"):
            shelf.load(name)
    assert hub.asked == []
    with pytest.raises(ValueError, match="the Hub has no public model of that name"):
        shelf.load("runs/quickstart")  # may be a repository, and is asked for as one only
    assert hub.asked == ["runs/quickstart"]


def test_at_the_local_address_a_folder_loads(linformer, tmp_path, monkeypatch):  # noqa: F811
    shutil.copytree(linformer, tmp_path / "runs" / "quickstart")
    monkeypatch.chdir(tmp_path)
    shelf = CheckpointStore([UNTRAINED], is_public=False)
    assert shelf.load(linformer).is_linformer
    assert shelf.load("runs/quickstart").shape == (3, 2)


def test_a_public_model_loads_as_it_is_without_a_token(hub, words, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    hub.folders["you/words"] = words
    found, expected = load_public_model("you/words"), load_checkpoint(words)
    ids = tokenize(expected.tokenizer, EXAMPLE).input_ids
    assert torch.equal(tokenize(found.tokenizer, EXAMPLE).input_ids, ids)
    assert torch.equal(found.model(ids).logits, expected.model(ids).logits)
    assert found.name == "you/words" and "**you/words**: bert" in describe(found)
    assert set(hub.tokens) == {False}
    assert list(tmp_path.iterdir()) == []  # nothing stays on the disk


def test_a_public_sentence_encoder_loads_with_its_pooling(hub, encoder, tmp_path):  # noqa: F811
    hub.folders["you/encoder"] = shutil.copytree(encoder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "1_Pooling" / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert load_public_model("you/encoder").embedding.poolings == ("cls",)
    assert "1_Pooling/config.json" in hub.fetched and "1_Pooling/pytorch_model.bin" not in hub.fetched


def test_code_pickles_and_adapters_of_a_public_model_are_not_fetched(hub, words, tmp_path):
    shutil.copytree(words, tmp_path, dirs_exist_ok=True)
    trace = tmp_path / "trace"
    (tmp_path / "own.py").write_text(f"open({str(trace)!r}, 'w')\n")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "own.Own"}}))
    # an adapter names another model, which would be loaded from wherever the name leads
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/etc", "peft_type": "LORA"}))
    for name in ("pytorch_model.bin", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.safetensors").write_bytes(b"")
    hub.folders["you/words"] = tmp_path
    assert load_public_model("you/words").model.config.model_type == "bert"
    assert set(hub.fetched) == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert not trace.exists()


def test_a_public_model_is_refused_by_its_size_before_anything_is_fetched(hub, words):
    hub.folders["you/words"] = words
    hub.sizes = {"model-00002-of-00002.safetensors": MOST_BYTES}
    with pytest.raises(ValueError, match=r"you/words has 600 MB of files; this page loads public models .* 600 MB"):
        load_public_model("you/words")
    hub.sizes = {"model-00002-of-00002.safetensors": None}
    with pytest.raises(ValueError, match="does not tell the size of model-00002"):
        load_public_model("you/words")
    assert hub.fetched == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "detr"}, "is of type 'detr'; this page loads the types albert, bert"),
        ({"num_hidden_layers": MOST_LAYERS + 1}, f"has {MOST_LAYERS + 1} layers; this page loads up to {MOST_LAYERS}"),
        ({"vocab_size": 10_000_000}, r"has 1\d\d million parameters; this page loads .* 150 million"),
        ({"hidden_size": 2**40, "num_attention_heads": 1}, "does not load|million parameters"),
        ({"hidden_size": "wide"}, "you/words"),
    ],
)
def test_a_public_model_is_refused_by_its_configuration_before_its_weights_are_fetched(
    hub,
    words,
    tmp_path,
    fields,
    said,
):
    shutil.copytree(words, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    hub.folders["you/words"] = tmp_path
    with pytest.raises(ValueError, match=said):
        load_public_model("you/words")
    assert "model.safetensors" not in hub.fetched


def test_a_model_without_safetensors_is_refused(hub, words, tmp_path):
    shutil.copytree(words, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()
    hub.folders["you/words"] = tmp_path
    with pytest.raises(ValueError, match="no weights in safetensors"):
        load_public_model("you/words")


def test_loading_runs_no_code_of_a_checkpoint(classifier, tmp_path):  # noqa: F811
    folder, trace = tmp_path / "model", tmp_path / "trace"
    shutil.copytree(classifier, folder)
    code = f"open({str(trace)!r}, 'w')\nfrom transformers import BertConfig\nclass Own(BertConfig):\n    pass\n"
    (folder / "own.py").write_text(code)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "own"}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "own.Own"}}))
    with pytest.raises(ValueError, match="does not load"):
        load_checkpoint(str(folder))
    assert not trace.exists()


@pytest.fixture
def loads(monkeypatch):
    """The names that are loaded, each as the same model; it takes the time and memory of none."""
    names, model = [], load_checkpoint(UNTRAINED)

    def load(name, folder=None):
        names.append(name)
        return type(model)(name, model.model, model.tokenizer)

    monkeypatch.setattr(store, "load_public_model", load)
    monkeypatch.setattr(store, "load_checkpoint", load)
    return names


def test_visitors_on_different_checkpoints_never_reload_while_they_drag(loads):
    shelf = CheckpointStore(["listed/one", "listed/two"], is_public=True)
    visitors = ["listed/one", "listed/two", *(f"you/{number}" for number in range(MOST_KEPT))]
    for name in visitors:
        shelf.load(name)
    for rank in range(1, 9):
        for name in visitors:
            picture, _ = show_rank(shelf, REAL, rank, 0.1, name, EXAMPLE, 1, 1)
            assert "removed" not in picture
    assert loads == visitors


def test_the_checkpoint_used_longest_ago_makes_room_and_listed_ones_stay(loads):
    shelf = CheckpointStore(["listed/one"], is_public=True)
    for number in range(MOST_KEPT):
        shelf.load(f"you/{number}")
    shelf.get("you/0")
    shelf.load("you/more")
    assert list(shelf.kept) == [*(f"you/{number}" for number in range(2, MOST_KEPT)), "you/0", "you/more"]
    picture, points = show_rank(shelf, REAL, 3, 0.1, "you/1", EXAMPLE, 1, 1)
    assert "you/1 was removed from memory" in picture and points is None
    assert shelf.get("listed/one").name == "listed/one"
    assert loads.count("you/1") == 1  # drawing does not load it again
    shelf.load("you/1")
    assert loads.count("you/1") == 2


def test_the_memory_of_kept_checkpoints_is_bounded(loads, monkeypatch):
    shelf = CheckpointStore(["listed/one"], is_public=True)
    each = shelf.get("listed/one").num_bytes
    assert each == 4 * sum(weight.numel() for weight in shelf.get("listed/one").model.parameters())
    monkeypatch.setattr(store, "MOST_KEPT_BYTES", 2.5 * each)
    for number in range(4):
        shelf.load(f"you/{number}")
    assert list(shelf.kept) == ["you/2", "you/3"]
    monkeypatch.setattr(store, "MOST_KEPT_BYTES", each / 2)
    shelf.load("you/large")
    assert list(shelf.kept) == ["you/large"]  # whoever chose it sees it


def test_strangers_see_the_name_of_a_listed_folder_and_not_its_path(linformer, tmp_path):  # noqa: F811
    shelf = CheckpointStore([linformer, UNTRAINED], is_public=True)
    assert list(shelf.listed) == [Path(linformer).name, UNTRAINED]
    assert str(Path(linformer).parent) not in describe(shelf.get(Path(linformer).name))
    twin = tmp_path / Path(linformer).name
    shutil.copytree(linformer, twin)
    with pytest.raises(ValueError, match="folders of one name; rename one"):
        CheckpointStore([linformer, str(twin)], is_public=True)
    assert list(CheckpointStore([linformer], is_public=False).listed) == [linformer]


def test_a_listed_checkpoint_that_does_not_load_ends_the_start():
    with pytest.raises(ValueError, match="nowhere does not load"):
        CheckpointStore([UNTRAINED, "nowhere"], is_public=True)


def test_a_strangers_requests_carry_no_token_to_the_hub(words, tmp_path, monkeypatch):
    """Tested against a loopback Hub, by a server that is signed in as the owner of both repositories."""
    with loopback_hub.serve(tmp_path / "hub") as hub:
        for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_XET"):
            monkeypatch.setattr(constants, name, name == "HF_HUB_DISABLE_XET")
        monkeypatch.setenv("HF_TOKEN", hub.token)
        monkeypatch.setattr(public_models, "HfApi", partial(HfApi, endpoint=hub.endpoint))
        owner = HfApi(endpoint=hub.endpoint)
        for name, private in (("owner/open", False), ("owner/secret", True)):
            owner.create_repo(name, private=private)
            owner.upload_folder(repo_id=name, folder_path=words)
        assert owner.model_info("owner/secret").private  # the environment's token opens it
        with hub.recorded() as requests:
            shelf = CheckpointStore([UNTRAINED], is_public=True)
            assert shelf.load("owner/open").model.config.model_type == "bert"
            with pytest.raises(ValueError, match="the Hub has no public model of that name"):
                shelf.load("owner/secret")
    assert any("model.safetensors" in note.path for note in requests)
    assert {note.user for note in requests} == {None}
    assert not any("secret" in note.path and note.status == 200 for note in requests)

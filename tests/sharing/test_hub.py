"""Sharing: a folder that loads anywhere, and pushes that arrive whole or not at all.

The Hub is the one on the loopback address. Pushes run in the process of the tests. What a fresh client loads is shown
by three processes: one with the package, one that has only what was pushed, and one that is offline.
"""

import json
import logging
import re
import shutil
import sys

import loopback_hub
import pytest
import torch
from conftest import tiny_config
from huggingface_hub import ModelCard, create_tag, list_repo_files
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

import linformer_hf
from linformer_hf.common.command_line import run
from linformer_hf.configuration_linformer import AUTO_MAP
from linformer_hf.data.tokenizers import train_tokenizer
from linformer_hf.sharing.hub import PushArguments, files_to_push, push, push_from_arguments, save_for_hub


HEADS = [name for name in AUTO_MAP if name != "AutoConfig"]
TEXTS = [f"The cat sees {number} boats on the river." for number in range(20)]

# What a client finds: for each head the class, a sum of the hidden states of the same input, and the module.
ASK = """
import json, sys
import torch, transformers
torch.set_num_threads(1)
ids = torch.tensor([[0, 7, 9, 11, 2], [0, 8, 2, 1, 1]])
mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])

def ask(source, heads, save_to=None, **options):
    answers = {}
    for head in heads:
        torch.manual_seed(0)
        model = getattr(transformers, head).from_pretrained(source, **options)
        with torch.no_grad():
            states = model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
            total = float(states[mask.bool()].double().abs().sum())
            answers[head] = [type(model).__name__, total, model.__module__]
            if head == "AutoModelForMaskedLM":
                logits = model(input_ids=ids, attention_mask=mask).logits
                answers["logits"] = logits[mask.bool()].double().abs().sum().item()
    if save_to:
        model.save_pretrained(save_to)
        transformers.AutoTokenizer.from_pretrained(source, **options).save_pretrained(save_to)
    return answers

def refusal(*arguments, **options):
    try:
        return ask(*arguments, **options)
    except Exception as error:
        return str(error)

def adapted(base):
    from peft import PeftModel
    return PeftModel.from_pretrained(base, "owner/adapter").eval()(ids[:1]).logits.double().abs().sum().item()
"""

# With the package: loads without trust, pushes as the host does, and an adapter.
WITH_PACKAGE = """
import importlib, linformer_hf
from peft import LoraConfig, get_peft_model
found, heads = {}, sys.argv[1].split(",")
found["local"] = ask("owner/tiny", heads)
linformer_hf.LinformerForMaskedLM.from_pretrained(sys.argv[2]).push_to_hub("owner/plain")
transformers.AutoTokenizer.from_pretrained(sys.argv[2]).push_to_hub("owner/plain")
torch.manual_seed(0)
base = linformer_hf.LinformerForMaskedLM.from_pretrained("owner/tiny")
lora = LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["projection"], init_lora_weights=False)
model = get_peft_model(base, lora).eval()
model.push_to_hub("owner/adapter")
found["adapter"] = model(ids[:1]).logits.double().abs().sum().item()
importlib.reload(linformer_hf)
found["trusted"] = ask("owner/tiny", heads[:1], trust_remote_code=True)
print(json.dumps(found))
"""

# Without it: everything is fetched.
WITHOUT_PACKAGE = """
found, heads, stranger = {}, sys.argv[1].split(","), sys.argv[3]
found["untrusted"] = refusal("owner/tiny", heads[:1])
found["all"] = ask("owner/tiny", heads, save_to=sys.argv[2], trust_remote_code=True)
for revision in ("a-branch", "a-tag", "refs/pr/1"):
    options = {"revision": revision, "code_revision": revision}
    found[revision] = ask("owner/tiny", ["AutoModelForMaskedLM"], trust_remote_code=True, **options)
found["plain"] = ask("owner/plain", ["AutoModelForMaskedLM"], trust_remote_code=True)
found["nowhere"] = refusal("owner/nowhere", heads[:1], trust_remote_code=True)
found["of a stranger"] = refusal("owner/secret", heads[:1], trust_remote_code=True, token=stranger)
found["of nobody"] = refusal("owner/secret", heads[:1], trust_remote_code=True, token=False)
found["of the owner"] = ask("owner/secret", heads[:1], trust_remote_code=True)
base = transformers.AutoModelForMaskedLM.from_pretrained("owner/tiny", trust_remote_code=True)
found["adapter"] = adapted(base)
print()  # after the host's question whether to trust the code
print(json.dumps(found))
"""

OFFLINE = """
heads = sys.argv[1].split(",")
found = {"all": ask("owner/tiny", heads, trust_remote_code=True)}
found["saved again"] = ask(sys.argv[2], heads[:2], trust_remote_code=True)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 300, 32)


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """An exported masked-language model, with a record."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("exported") / "tiny"
    folder.mkdir()
    record = {"command": "linformer pretrain", "numbers": {"perplexity": 12.5}, "device": "CPU", "about": {}}
    (folder / "results.json").write_text(json.dumps(record))
    model = linformer_hf.LinformerForMaskedLM(tiny_config(vocab_size=len(tokenizer)))
    return save_for_hub(model, tokenizer, folder)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with loopback_hub.serve(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of the exported folder to change."""
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.fixture(scope="module")
def pushed(hub, folder, tmp_path_factory):
    """`owner/tiny` on the Hub, with a branch, a tag and a pull request, and `owner/secret`, private."""
    changed = shutil.copytree(folder, tmp_path_factory.mktemp("changed") / "tiny")
    (changed / "notes.md").write_text("what the pull request adds")
    with hub.connected(tmp_path_factory.mktemp("pusher")):
        push(folder, "owner/tiny")
        create_tag("owner/tiny", tag="a-tag")
        push(folder, "owner/tiny", revision="a-branch")
        push(folder, "owner/secret", private=True)
        push(changed, "owner/tiny", create_pr=True)


@pytest.fixture(scope="module")
def clients(hub, pushed, folder, tmp_path_factory):
    """What the three clients found, and the requests of the offline one."""
    base = tmp_path_factory.mktemp("clients")
    heads, saved = ",".join(HEADS), base / "saved"
    found = {"package": hub.ask(ASK + WITH_PACKAGE, base / "first", heads, folder)}
    found["remote"] = hub.ask(ASK + WITHOUT_PACKAGE, base / "second", heads, saved, hub.stranger_token, package=False)
    with hub.recorded() as notes:
        found["offline"] = hub.ask(ASK + OFFLINE, base / "second", heads, saved, package=False, HF_HUB_OFFLINE="1")
    return found | {"requests": notes}


def command(monkeypatch, capsys, *flags):
    """Give `linformer push` in this process, and return its exit code and what it said."""
    monkeypatch.setattr(sys, "argv", ["linformer", "push", *map(str, flags)])
    logger = logging.getLogger("linformer_hf")
    handlers, level = list(logger.handlers), logger.level
    code = 0
    try:
        run(push_from_arguments, PushArguments, program="linformer push")
    except SystemExit as stopped:
        code = stopped.code
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
    return code, capsys.readouterr().err


def classes(found):
    return [value[0] for name, value in found.items() if name != "logits"]


def modules(found):
    return {value[2].split(".")[0] for name, value in found.items() if name != "logits"}


def test_an_exported_folder_holds_all_that_it_needs_and_no_pickle(folder):
    names = {file.name for file in folder.iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "configuration_linformer.py",
        "model.safetensors",
        "modeling_linformer.py",
        "results.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert json.loads((folder / "config.json").read_text())["linformer_version"] == linformer_hf.__version__
    assert AutoTokenizer.from_pretrained(folder)("The cat")["input_ids"][0] == 0


def test_one_push_loads_through_every_head_without_the_package(clients):
    found = clients["remote"]["all"]
    assert classes(found) == [AUTO_MAP[head].split(".")[1] for head in HEADS]
    assert modules(found) == {"transformers_modules"}
    assert len({value[1] for name, value in found.items() if name != "logits"}) == 1


def test_with_the_package_it_loads_without_trust_and_computes_the_same(clients):
    local, remote = clients["package"]["local"], clients["remote"]["all"]
    assert modules(local) == {"linformer_hf"}
    assert (local["AutoModel"][1], local["logits"]) == (remote["AutoModel"][1], remote["logits"])


def test_what_was_fetched_loads_offline(clients):
    assert clients["offline"]["all"] == clients["remote"]["all"]
    assert clients["requests"] == []


def test_what_the_remote_code_saved_loads_again(clients):
    again = clients["offline"]["saved again"]
    assert again["AutoModel"][1] == clients["remote"]["all"]["AutoModel"][1]


@pytest.mark.parametrize("revision", ["a-branch", "a-tag", "refs/pr/1"])
def test_every_kind_of_revision_loads(clients, revision):
    assert classes(clients["remote"][revision]) == ["LinformerForMaskedLM"]


def test_a_private_repository_needs_the_token(clients):
    assert classes(clients["remote"]["of the owner"]) == ["LinformerModel"]
    for who in ("of a stranger", "of nobody"):
        assert "owner/secret is not a local folder" in clients["remote"][who]


def test_without_trust_and_without_the_package_the_host_refuses(clients):
    assert "trust_remote_code=True" in clients["remote"]["untrusted"]


def test_a_missing_repository_is_named(clients):
    assert "owner/nowhere is not a local folder" in clients["remote"]["nowhere"]


def test_with_trust_and_the_package_the_package_wins_and_importing_twice_is_harmless(clients):
    assert clients["package"]["trusted"]["AutoModel"][2] == "linformer_hf.modeling_linformer"


def test_the_hosts_own_push_gives_a_repository_that_loads_alike(clients):
    plain, ours = clients["remote"]["plain"], clients["remote"]["all"]
    assert plain["logits"] == ours["logits"]
    assert classes(plain) == ["LinformerForMaskedLM"]


def test_an_adapter_travels_beside_its_base(clients):
    assert clients["remote"]["adapter"] == pytest.approx(clients["package"]["adapter"], rel=1e-6)


def test_the_pushed_card_names_the_repository_and_the_local_one_stays(hub, folder, tmp_path):
    with hub.connected(tmp_path):
        push(folder, "owner/carded")
        card = ModelCard.load("owner/carded").content
    assert card.count('"owner/carded"') == 4
    assert "OWNER/NAME" not in card
    assert "OWNER/NAME" in (folder / "README.md").read_text()


def test_license_and_language_of_the_pushed_card_can_be_given(hub, folder, tmp_path, caplog):
    linformer_logger = logging.getLogger("linformer_hf")
    linformer_logger.addHandler(caplog.handler)
    try:
        with hub.connected(tmp_path):
            push(folder, "owner/licensed")
            assert "names no license" in caplog.text
            push(folder, "owner/licensed", license="apache-2.0", language=["en", "de"])
            card = ModelCard.load("owner/licensed")
    finally:
        linformer_logger.removeHandler(caplog.handler)
    assert (card.data.license, card.data.language) == ("apache-2.0", ["en", "de"])
    assert '"owner/licensed"' in card.text


def test_the_command_pushes_with_a_token_that_it_never_writes(hub, folder, tmp_path, monkeypatch, capsys):
    with hub.connected(tmp_path, token=None):
        code, said = command(
            monkeypatch, capsys, "--folder", folder, "--repo_id", "owner/by-token", "--token", hub.token
        )
    assert code == 0, said
    assert "Pushed to" in said
    assert hub.token not in said
    with hub.connected(tmp_path):
        assert "model.safetensors" in list_repo_files("owner/by-token")


@pytest.mark.parametrize(
    ("name", "token", "flags", "failing", "message"),
    [
        ("wrong-token", "hf_wrong", [], None, "refused while making the repository"),
        ("anothers-namespace", "stranger", [], None, "refused while making the repository"),
        ("stale-parent", "", ["--parent_commit", "0" * 40], None, "refused while uploading"),
        ("commit-fails", "", [], "POST .*/commit/", "refused while uploading"),
        ("weights-fail", "", [], "POST .*/info/lfs/objects/batch", "refused while uploading"),
    ],
)
def test_a_push_that_fails_says_so_in_one_line_and_changes_nothing(
    hub, folder, tmp_path, monkeypatch, capsys, name, token, flags, failing, message
):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    token = hub.stranger_token if token == "stranger" else token
    flags = ["--folder", folder, "--repo_id", f"owner/{name}", *flags]
    with hub.connected(tmp_path, token=token):
        if failing:
            with hub.failing(failing, status=507):
                code, said = command(monkeypatch, capsys, *flags)
        else:
            code, said = command(monkeypatch, capsys, *flags)
    assert code == 2, said
    error = said[said.index("error: ") :]
    assert error.startswith(f"error: The Hub {message}")
    assert error.count("\n") == 1
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    if failing:  # what was stored by then does no harm to a second try
        with hub.connected(tmp_path):
            assert command(monkeypatch, capsys, *flags)[0] == 0
            assert set(files_to_push(folder)) <= set(list_repo_files(f"owner/{name}"))


def test_a_push_without_a_network_says_so_in_one_line(folder, tmp_path, monkeypatch, capsys):
    gone = loopback_hub.LoopbackHub(tmp_path, 9, {"owner": "hf_any", "stranger": "hf_other"})  # nobody listens there
    for offline in (False, True):
        with gone.connected(tmp_path, offline=offline):
            code, said = command(monkeypatch, capsys, "--folder", folder, "--repo_id", "owner/tiny")
        assert code == 2, said
        error = said[said.index("error: ") :]
        assert error.startswith("error: The Hub could not be reached while making the repository")
        assert error.count("\n") == 1


def test_a_dry_run_lists_the_files_and_asks_nobody(hub, folder, tmp_path, monkeypatch, capsys):
    with hub.recorded() as notes, hub.connected(tmp_path):
        code, said = command(monkeypatch, capsys, "--folder", folder, "--repo_id", "owner/dry", "--dry_run")
    assert (code, notes) == (0, [])
    for name, size in files_to_push(folder).items():
        assert re.search(rf"{size / 1e6:.3f} MB  {re.escape(name)}", said)


def test_a_push_uploads_no_pickles_and_no_state_of_a_training(folder, copy):
    for name in ("training_args.bin", "optimizer.pt", "rng_state.pth", "trainer_state.json"):
        (copy / name).write_bytes(b"x")
    for name in ("checkpoint-7", "runs", "thesis"):
        (copy / name).mkdir()
        (copy / name / "config.json").write_text("{}")
    assert files_to_push(copy) == files_to_push(folder)


def test_a_sentence_encoder_and_its_onnx_files_are_pushed_with_their_folders(folder, copy):
    modules = [{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"}, {"idx": 2, "path": "2_Normalize"}]
    (copy / "modules.json").write_text(json.dumps(modules))
    for name in ("1_Pooling/config.json", "onnx/model.onnx", "onnx/model.onnx.data", "onnx/notes.pt"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("{}")
    (copy / "2_Normalize").mkdir()
    added = set(files_to_push(copy)) - set(files_to_push(folder))
    assert added == {"modules.json", "1_Pooling/config.json", "onnx/model.onnx", "onnx/model.onnx.data"}
    (copy / "2_Normalize").rmdir()
    with pytest.raises(ValueError, match="lists the folder 2_Normalize, which"):
        files_to_push(copy)


def split_weights(folder):
    """Save the weights in three files, as the host does for large models."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {f"model-{part + 1:05d}-of-00003.safetensors": sorted(tensors)[part::3] for part in range(3)}
    for name, held in shards.items():
        save_file({key: tensors[key] for key in held}, folder / name, metadata={"format": "pt"})
    places = {key: name for name, held in shards.items() for key in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return list(shards)


def test_every_file_of_split_weights_is_needed(copy):
    first, second, _ = split_weights(copy)
    assert set(files_to_push(copy)) > {first, second, "model.safetensors.index.json"}
    whole = load_file(copy / second)
    save_file({key: whole[key] for key in sorted(whole)[1:]}, copy / second)
    with pytest.raises(ValueError, match=f"{second} lacks the tensor {re.escape(min(whole))}"):
        push(copy, "owner/harmed")
    (copy / second).unlink()
    with pytest.raises(ValueError, match=f"lacks {second}, one of 3 files"):
        push(copy, "owner/harmed")
    (copy / "model.safetensors.index.json").unlink()
    with pytest.raises(ValueError, match=f"lacks model.safetensors.index.json, which says what {first} is a part of"):
        push(copy, "owner/harmed")


@pytest.mark.parametrize("name", ["results.json", "README.md", "tokenizer_config.json", "notes.txt"])
@pytest.mark.parametrize("secret", ["hf_" + "aBcD" * 8, "https://me:password@host/data.csv"])
def test_a_folder_with_a_secret_in_it_is_not_pushed(copy, name, secret):
    with (copy / name).open("a") as file:
        file.write(f"\nsee {secret}\n")
    with pytest.raises(ValueError, match=f"{name} holds an access token or password") as caught:
        push(copy, "owner/harmed", dry_run=True)
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda at: at("config.json").unlink(), "config.json: there is no such file"),
        (lambda at: at("config.json").write_text("{"), "config.json is not JSON"),
        (lambda at: at("modeling_linformer.py").unlink(), "lacks modeling_linformer.py"),
        (lambda at: at("model.safetensors").unlink(), "no weights in safetensors"),
        (lambda at: at("model.safetensors").write_bytes(at("model.safetensors").read_bytes()[:-9]), "damaged"),
        (lambda at: [at(name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")], "no tokenizer"),
        (lambda at: edit(at("config.json"), auto_map={"AutoModel": "x.Y"}), "auto_map.*AutoConfig"),
        (lambda at: at("README.md").write_text("---\na: [\n---\n"), "README.md: its metadata"),
    ],
    ids=["no config", "broken config", "no code", "no weights", "cut weights", "no tokenizer", "partial map", "card"],
)
def test_a_folder_that_is_not_whole_is_not_pushed(copy, harm, message):
    harm(lambda name: copy / name)
    with pytest.raises(ValueError, match=message):
        push(copy, "owner/harmed")


def edit(file, **changes):
    config = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in (config | changes).items() if value is not None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"projection_sharing": "key_value"}, "does not fit its weights.*projection.weight"),
        ({"projection_type": "mean_pool"}, "does not fit its weights.*also holds.*projection.weight"),
        ({"projected_lenght": 4}, "projected_lenght.*projected_length"),
        ({"linformer_version": "99.0.0"}, "99.0.0.*pip install --upgrade"),
        ({"max_position_embeddings": 64}, "mismatch"),
    ],
    ids=["missing field", "other sharing", "other type", "misspelt field", "newer", "other n"],
)
def test_a_configuration_that_does_not_fit_its_weights_is_refused(copy, changes, message):
    edit(copy / "config.json", **changes)
    with pytest.raises((ValueError, RuntimeError), match=message):
        linformer_hf.LinformerForMaskedLM.from_pretrained(copy)


def test_damaged_weights_are_refused_by_name(copy):
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(ValueError, match=f"{copy} are damaged"):
        linformer_hf.LinformerModel.from_pretrained(copy)

"""Sharing: a folder that loads anywhere, cards that are true, pushes that arrive whole or not at all.

The Hub is the one on the loopback address; its clients run in processes of their own, each with a fresh cache.
"""

import json
import re
import shutil
from pathlib import Path

import loopback_hub
import pytest
import torch
from conftest import tiny_config
from huggingface_hub import ModelCard
from transformers import AutoTokenizer

import linformer_hf
from linformer_hf.configuration_linformer import AUTO_MAP
from linformer_hf.data.blocks import train_tokenizer
from linformer_hf.sharing.hub import export, files_to_push, push, render_card


CARDS = Path(__file__).parents[2] / "model_cards"
HEADS = [name for name in AUTO_MAP if name != "AutoConfig"]
TEXTS = [f"The cat sees {number} boats on the river." for number in range(20)]

# What every client answers: a sum of the outputs of each head for the same input.
ASK_ALL_HEADS = """
import json, sys
import torch, transformers
torch.set_num_threads(1)
source, heads, options = sys.argv[1], sys.argv[2].split(","), json.loads(sys.argv[3])
ids = torch.tensor([[0, 7, 9, 11, 2], [0, 8, 2, 1, 1]])
mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
answers = {}
for head in heads:
    torch.manual_seed(0)
    model = getattr(transformers, head).from_pretrained(source, **options)
    shaped = [ids[:, None], mask[:, None]] if head == "AutoModelForMultipleChoice" else [ids, mask]
    with torch.no_grad():
        outputs = model(input_ids=shaped[0], attention_mask=shaped[1])
    body = model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    answers[head] = [type(model).__name__, float(body[mask.bool()].double().abs().sum()), model.__module__]
    if head == "AutoModelForMaskedLM":
        answers["logits"] = outputs.logits[mask.bool()].double().abs().sum().item()
if len(sys.argv) > 4:
    model.save_pretrained(sys.argv[4])
    transformers.AutoTokenizer.from_pretrained(source, **options).save_pretrained(sys.argv[4])
print(json.dumps(answers))
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
    record = {
        "command": "python scripts/run_mlm.py --output_dir tiny",
        "numbers": {"perplexity": 12.5, "seconds": 3.25},
        "device": "CPU",
        "about": {
            "pipeline_tag": "fill-mask",
            "dataset": "twenty sentences",
            "dataset_type": "text",
            "metrics": ["perplexity"],
            "license": "apache-2.0",
            "language": "en",
        },
    }
    (folder / "results.json").write_text(json.dumps(record))
    model = linformer_hf.LinformerForMaskedLM(tiny_config(vocab_size=len(tokenizer)))
    return export(model, tokenizer, folder)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with loopback_hub.serve(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(scope="module")
def pushed(hub, folder, tmp_path_factory):
    """`owner/tiny` on the Hub by the script, with a branch, a tag and a pull request, and `owner/secret`, private."""
    cache = tmp_path_factory.mktemp("pusher")
    script(hub, cache, "--folder", folder, "--repo_id", "owner/tiny")
    others = """
import sys
from huggingface_hub import create_tag
from linformer_hf.sharing.hub import push
create_tag("owner/tiny", tag="a-tag")
push(sys.argv[1], "owner/tiny", revision="a-branch")
push(sys.argv[1], "owner/secret", private=True)
push(sys.argv[2], "owner/tiny", create_pr=True)
"""
    changed = shutil.copytree(folder, cache / "changed")
    (changed / "notes.md").write_text("what the pull request adds")
    hub.run(others, cache, folder, changed)


def ask(hub, cache, source, *arguments, heads=HEADS, options=None, preamble="", **changes):
    trust = {"trust_remote_code": True} if options is None else options
    code = preamble + ASK_ALL_HEADS
    return hub.ask(code, cache, str(source), ",".join(heads), json.dumps(trust), *arguments, **changes)


def answers(found):
    return [value for name, value in found.items() if name != "logits"]


def script(hub, cache, *arguments, check=True, **changes):
    """Run scripts/push_to_hub.py as a user does."""
    code = (
        "import runpy, sys; sys.argv = ['push_to_hub.py', *sys.argv[1:]]; "
        f"runpy.run_path({str(Path(__file__).parents[2] / 'scripts' / 'push_to_hub.py')!r}, run_name='__main__')"
    )
    return hub.run(code, cache, *map(str, arguments), check=check, **changes)


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


def test_one_push_loads_through_every_head_with_and_without_the_package(hub, pushed, tmp_path):
    cache, saved = tmp_path / "first", tmp_path / "saved"

    remote = ask(hub, cache, "owner/tiny", saved, package=False)
    assert all(
        name.startswith("Linformer") and "transformers_modules" in module for name, _, module in answers(remote)
    )
    assert len({value for _, value, _ in answers(remote)}) == 1

    with hub.recorded() as notes:
        offline = ask(hub, cache, "owner/tiny", package=False, HF_HUB_OFFLINE="1")
    assert (offline, notes) == (remote, [])

    # saved by a process that had only the remote code, loaded by a third, and by one with the package and no trust
    again = ask(hub, tmp_path / "third", saved, heads=HEADS[:2], package=False)
    local = ask(hub, tmp_path / "fourth", "owner/tiny", options={}, preamble="import linformer_hf")
    assert again["AutoModel"][1] == remote["AutoModel"][1] == local["AutoModel"][1]
    assert all(module == "linformer_hf.modeling_linformer" for _, _, module in answers(local))
    assert local["logits"] == remote["logits"]


@pytest.mark.parametrize("revision", ["a-branch", "a-tag", "refs/pr/1"])
def test_every_kind_of_revision_loads(hub, pushed, tmp_path, revision):
    options = {"trust_remote_code": True, "revision": revision, "code_revision": revision}
    found = ask(hub, tmp_path, "owner/tiny", heads=["AutoModelForMaskedLM"], options=options, package=False)
    assert found["AutoModelForMaskedLM"][0] == "LinformerForMaskedLM"


def test_the_pushed_card_names_the_repository_and_the_local_one_stays(hub, folder, tmp_path):
    script(hub, tmp_path / "pusher", "--folder", folder, "--repo_id", "owner/carded")
    read = (
        "from huggingface_hub import ModelCard; import json; print(json.dumps(ModelCard.load('owner/carded').content))"
    )
    card = hub.ask(read, tmp_path / "reader")
    assert card.count('"owner/carded"') == 4
    assert "OWNER/NAME" not in card
    assert "OWNER/NAME" in (folder / "README.md").read_text()


def test_a_private_repository_needs_the_token(hub, pushed, tmp_path):
    heads = ["AutoModelForMaskedLM"]
    assert ask(hub, tmp_path / "owner", "owner/secret", heads=heads, package=False)
    for token in (None, hub.stranger_token):
        with pytest.raises(AssertionError, match="owner/secret is not a local folder"):
            ask(hub, tmp_path / f"client {token}", "owner/secret", heads=heads, package=False, HF_TOKEN=token)


def test_without_trust_and_without_the_package_the_host_refuses(hub, pushed, tmp_path):
    with pytest.raises(AssertionError, match="trust_remote_code=True"):
        ask(hub, tmp_path / "client", "owner/tiny", options={}, package=False)


def test_with_trust_and_the_package_the_package_wins_and_importing_twice_is_harmless(hub, pushed, tmp_path):
    twice = "import importlib, linformer_hf; importlib.reload(linformer_hf)\n"
    found = ask(hub, tmp_path / "client", "owner/tiny", heads=["AutoModel"], preamble=twice)
    assert found["AutoModel"][2] == "linformer_hf.modeling_linformer"


def test_the_hosts_own_push_gives_a_repository_that_loads_alike(hub, folder, tmp_path):
    push_model = (
        "import sys, linformer_hf; from transformers import AutoTokenizer\n"
        "linformer_hf.LinformerForMaskedLM.from_pretrained(sys.argv[1]).push_to_hub('owner/plain')\n"
        "AutoTokenizer.from_pretrained(sys.argv[1]).push_to_hub('owner/plain')"
    )
    hub.run(push_model, tmp_path / "pusher", folder)
    heads = ["AutoModelForMaskedLM", "AutoModelForTokenClassification"]
    plain = ask(hub, tmp_path / "client", "owner/plain", heads=heads, package=False)
    assert plain == {**ask(hub, tmp_path / "local", folder, heads=heads, package=False), **modules_of(plain)}


def modules_of(found):
    """The parts of an answer that name the module, which differs by where the code was fetched from."""
    return {name: value for name, value in found.items() if name != "logits"}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"HF_TOKEN": "hf_wrong"}, "making the repository"),
        ({"HF_TOKEN": "stranger"}, "making the repository"),
        ({"parent": "0" * 40}, "uploading"),
        ({"failing": r"POST .*/commit/"}, "uploading"),
    ],
    ids=["wrong token", "another's namespace", "stale parent", "commit fails"],
)
def test_a_push_that_fails_says_so_in_one_line_and_changes_nothing(hub, folder, tmp_path, fault, message):
    name = f"owner/broken-{abs(hash(str(fault)))}"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    extra = ["--parent_commit", fault["parent"]] if "parent" in fault else []
    token = {"stranger": hub.stranger_token}.get(fault.get("HF_TOKEN"), fault.get("HF_TOKEN", hub.token))
    arguments = ["--folder", folder, "--repo_id", name, *extra]
    if "failing" in fault:
        with hub.failing(fault["failing"], status=507):
            client = script(hub, tmp_path / "pusher", *arguments, check=False, HF_TOKEN=token)
    else:
        client = script(hub, tmp_path / "pusher", *arguments, check=False, HF_TOKEN=token)
    assert client.returncode == 2
    assert f"error: The Hub refused while {message}" in client.stderr
    assert "Traceback" not in client.stderr
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    if "failing" in fault:  # what was stored by then does no harm to a second try
        script(hub, tmp_path / "pusher", *arguments)
        found = ask(hub, tmp_path / "client", name, heads=["AutoModel"], package=False)
        assert found["AutoModel"][0] == "LinformerModel"


def test_a_missing_repository_is_named(hub, tmp_path):
    with pytest.raises(AssertionError, match="owner/nowhere is not a local folder"):
        ask(hub, tmp_path / "client", "owner/nowhere", package=False)


def test_a_dry_run_lists_the_files_and_asks_nobody(hub, folder, tmp_path):
    with hub.recorded() as notes:
        client = script(hub, tmp_path / "pusher", "--folder", folder, "--repo_id", "owner/dry", "--dry_run")
    assert notes == []
    for name, size in files_to_push(folder).items():
        assert re.search(rf"{size / 1e6:.3f} MB  {re.escape(name)}", client.stderr)


def test_a_push_leaves_pickles_and_the_state_of_training_at_home(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    for name in ("training_args.bin", "optimizer.pt", "rng_state.pth", "trainer_state.json"):
        (copy / name).write_bytes(b"x")
    (copy / "checkpoint-7").mkdir()
    assert files_to_push(copy) == files_to_push(folder)


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
    ],
    ids=["no config", "broken config", "no code", "no weights", "cut weights", "no tokenizer", "partial map"],
)
def test_a_folder_that_is_not_whole_is_not_pushed(folder, tmp_path, harm, message):
    copy = shutil.copytree(folder, tmp_path / "copy")
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
        ({"projection_type": "mean_pool"}, "does not fit its weights.*no place for.*projection.weight"),
        ({"projected_lenght": 4}, "projected_lenght.*projected_length"),
        ({"linformer_version": "99.0.0"}, "99.0.0.*pip install --upgrade"),
        ({"max_position_embeddings": 64}, "mismatch"),
    ],
    ids=["missing field", "other sharing", "other type", "misspelt field", "newer", "other n"],
)
def test_a_configuration_that_does_not_fit_its_weights_is_refused(folder, tmp_path, changes, message):
    copy = shutil.copytree(folder, tmp_path / "copy")
    edit(copy / "config.json", **changes)
    with pytest.raises((ValueError, RuntimeError), match=message):
        linformer_hf.LinformerForMaskedLM.from_pretrained(copy)


def test_damaged_weights_are_refused_by_name(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(ValueError, match=f"{copy} are damaged"):
        linformer_hf.LinformerModel.from_pretrained(copy)


def test_a_card_holds_the_numbers_of_its_record_and_no_others(folder):
    card = ModelCard.load(folder / "README.md")
    assert card.data.eval_results[0].metric_value == 12.5
    assert (card.data.library_name, card.data.pipeline_tag, card.data.license) == (
        "transformers",
        "fill-mask",
        "apache-2.0",
    )
    results = card.text[card.text.index("## Results") : card.text.index("## Limits")]
    assert re.findall(r"[0-9.]*[0-9]", results) == ["12.5", "3.25"]


def test_a_card_without_a_record_has_no_results():
    card = render_card({}, "bare")
    assert "## Results" not in card
    assert "model-index" not in card
    assert "trust_remote_code=True" in card


def test_a_card_that_is_there_stays(folder, tokenizer, tmp_path):
    (tmp_path / "README.md").write_text("written by hand")
    export(linformer_hf.LinformerModel.from_pretrained(folder), tokenizer, tmp_path)
    assert (tmp_path / "README.md").read_text() == "written by hand"


@pytest.mark.parametrize("name", ["quickstart", "minilm-linear"])
def test_a_published_card_is_what_its_record_renders_to(name):
    record = json.loads((CARDS / name / "results.json").read_text())
    assert (CARDS / name / "README.md").read_text() == render_card(record, name)


def test_an_adapter_travels_beside_its_base(hub, pushed, tmp_path):
    train = """
import json, sys, torch, linformer_hf
from peft import LoraConfig, PeftModel, get_peft_model
torch.set_num_threads(1)
torch.manual_seed(0)
base = linformer_hf.LinformerForMaskedLM.from_pretrained("owner/tiny")
lora = LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["projection"], init_lora_weights=False)
model = get_peft_model(base, lora).eval()
model.push_to_hub("owner/adapter")
logits = model(torch.tensor([[0, 7, 9, 2]])).logits
"""
    load = """
import json, torch, transformers
from peft import PeftModel
torch.set_num_threads(1)
base = transformers.AutoModelForMaskedLM.from_pretrained("owner/tiny", trust_remote_code=True)
logits = PeftModel.from_pretrained(base, "owner/adapter").eval()(torch.tensor([[0, 7, 9, 2]])).logits
"""
    tell = "print(json.dumps(logits.double().abs().sum().item()))"
    pushed_logits = hub.ask(train + tell, tmp_path / "pusher")
    assert hub.ask(load + tell, tmp_path / "reader", package=False) == pytest.approx(pushed_logits, rel=1e-6)

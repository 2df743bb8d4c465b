"""The loopback Hub itself: the real clients find in it what they expect of a Hub."""

import hashlib
import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import loopback_hub
import pytest
from huggingface_hub import create_repo
from huggingface_hub.errors import HfHubHTTPError
from loopback_hub.cards import read_card


CLIENTS = Path(loopback_hub.__file__).parent / "clients"
OIDS = "[0-9a-f]{64}"


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with loopback_hub.serve(tmp_path_factory.mktemp("hub")) as running:
        yield running


def send(url, method="GET", body=None, **headers):
    """Send what no client would, and return the status."""
    request = urllib.request.Request(url, body, headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def commit_lines(*changes):
    lines = [{"key": "header", "value": {"summary": "by hand"}}]
    return "\n".join(json.dumps(line) for line in [*lines, *changes]).encode()


def git(hub, repo_id, *arguments):
    command = ["git", "-C", str(hub.git_folder(repo_id)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def folder_of(files, folder):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def pseudo_random(size, seed):
    return (seed.to_bytes(8, "big") + bytes(range(251))) * (size // 259 + 1)


def test_what_was_pushed_comes_back_at_every_revision(hub, tmp_path):
    large = pseudo_random(11 * 1024**2, seed=1)
    card = b"---\nlicense: apache-2.0\nlibrary_name: transformers\ntags: [linformer]\n---\n# Title\n"
    folder = folder_of({"README.md": card, "weights.dat": large, "docs/text.txt": b"tag"}, tmp_path / "folder")

    with hub.recorded() as notes:
        pushed = hub.here(CLIENTS / "push_revisions.py", tmp_path / "pusher", "owner/revisions", folder)
    assert [(note.method, note.user) for note in notes if note.host == "localhost"] == [("PUT", None)]
    assert pushed["request"] == "refs/pr/1"
    assert pushed["refs"] == ["refs/heads/main", "refs/heads/try/out", "refs/tags/v1.0", "refs/pr/1"]
    assert len(pushed["titles"]) == 4
    assert pushed["titles"][-1] == "initial commit"
    assert pushed["files"]["weights.dat"] == [len(large), True]
    assert pushed["files"]["docs/text.txt"] == [len(b"main"), False]
    assert ".gitattributes" in pushed["files"]
    assert pushed["license"] == "apache-2.0"
    assert {"linformer", "transformers", "license:apache-2.0"} <= set(pushed["tags"])

    with hub.recorded() as notes:
        pulled = hub.here(CLIENTS / "pull_revisions.py", tmp_path / "puller", "owner/revisions")
    texts = {revision: text for revision, (text, _) in pulled.items()}
    assert texts == {"main": "main", "try/out": "branch", "v1.0": "tag", "refs/pr/1": "request"}
    assert {sha256 for _, sha256 in pulled.values()} == {hashlib.sha256(large).hexdigest()}
    from_storage = [(note.method, note.user, note.status) for note in notes if note.host == "localhost"]
    assert from_storage == [("GET", None, 200)]  # once for all revisions, and without the token

    with hub.recorded() as notes:
        again = hub.here(CLIENTS / "pull_revisions.py", tmp_path / "puller", "owner/revisions")
    assert again == pulled
    assert not [note for note in notes if "/resolve/" in note.path and note.method == "GET"]
    with hub.recorded() as notes:
        again = hub.here(CLIENTS / "pull_revisions.py", tmp_path / "puller", "owner/revisions", offline=True)
    assert again == pulled
    assert notes == []

    git(hub, "owner/revisions", "fsck", "--full", "--strict")
    assert len(git(hub, "owner/revisions", "log", "--format=%H", "main").split()) == 3


def test_tokens_open_what_they_should(hub, tmp_path):
    assert hub.here(CLIENTS / "try_tokens.py", tmp_path, hub.stranger_token) == {
        "owner reads": "done",
        "stranger reads": "RepositoryNotFoundError 404",
        "nobody reads": "RepositoryNotFoundError 401",
        "nobody reads open": "done",
        "wrong token": "HfHubHTTPError 401",
        "wrong token, whoami": "HfHubHTTPError 401",
        "missing": "RepositoryNotFoundError 404",
        "no namespace": "RepositoryNotFoundError 404",
        "stranger writes": "HfHubHTTPError 403",
        "nobody writes": "HfHubHTTPError 401",
        "stranger proposes": "done",
        "stranger creates": "HfHubHTTPError 403",
        "stranger deletes": "HfHubHTTPError 403",
        "created twice": "HfHubHTTPError 409",
        "stranger reads later": "done",
    }


def test_commits_refs_and_deletion(hub, tmp_path):
    outcomes, side, left, files, exists = hub.here(CLIENTS / "change_refs.py", tmp_path)
    assert outcomes == {
        "stale parent": 412,
        "no file": 404,
        "no branch": 404,
        "write to no branch": 404,
        "delete no file": 404,
        "branch again": 409,
        "tag again": 409,
    }
    assert side == [".gitattributes"]
    assert left == ["refs/heads/main"]
    assert files == [".gitattributes", "a.txt"]
    assert not exists
    # the answer named the commit, so the client remembers that the file is missing there
    assert [path.name for path in tmp_path.glob("hub/*/.no_exist/*/*")] == ["b.txt"]


@pytest.mark.parametrize(
    ("name", "request_line", "fault"),
    [
        ("announce", "POST .*/preupload/", {"status": 507}),
        ("second-file", f"PUT /{OIDS}", {"status": 507, "skip": 1}),
        ("verify", "POST .*/verify$", {"status": 507}),
        ("commit", "POST .*/commit/", {"status": 500}),
        ("lost-answer", "POST .*/commit/", {"status": 500, "moment": "after"}),
    ],
)
def test_a_push_that_breaks_leaves_a_whole_repo(hub, tmp_path, name, request_line, fault):
    seed = len(name)
    contents = {"a.safetensors": pseudo_random(3000, seed), "b.safetensors": pseudo_random(4000, seed), "c.txt": b"c"}
    folder = folder_of(contents, tmp_path / "folder")
    repo = f"owner/broken-{name}"
    with (
        hub.failing(request_line, **fault),
        hub.recorded() as notes,
        pytest.raises((HfHubHTTPError, RuntimeError)) as broken,
    ):
        hub.here(CLIENTS / "push_folder.py", tmp_path / "cache", repo, folder)
    assert "fault asked for by a test" in f"{broken.value} {broken.value.__cause__}"
    assert sum(note.fault for note in notes) == 1

    git(hub, repo, "fsck", "--full", "--strict")
    arrived = name == "lost-answer"
    assert len(git(hub, repo, "log", "--format=%H").split()) == 1 + arrived
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents

    with hub.recorded() as notes:
        files = hub.here(CLIENTS / "push_folder.py", tmp_path / "cache", repo, folder)
    assert files == [".gitattributes", *contents]
    assert len(git(hub, repo, "log", "--format=%H").split()) == 2
    sent_again = sum(note.method == "PUT" for note in notes)
    assert sent_again == {"announce": 2, "second-file": 1}.get(name, 0)
    assert not list((hub.folder / "unfinished").iterdir())


def test_a_download_that_breaks_leaves_no_half_file(hub, tmp_path):
    content = pseudo_random(300_000, seed=9)
    folder = folder_of({"weights.safetensors": content}, tmp_path / "folder")
    local = folder / "weights.safetensors"
    hub.here(CLIENTS / "push_folder.py", tmp_path / "pusher", "owner/cut", folder)

    with hub.failing(f"GET /{OIDS}", status=507), pytest.raises(HfHubHTTPError, match="507"):
        hub.here(CLIENTS / "download_weights.py", tmp_path / "cache", "owner/cut", local)
    assert not list((tmp_path / "cache").glob("hub/*/snapshots/*/weights.safetensors"))

    with hub.failing(f"GET /{OIDS}", moment="body"), hub.recorded() as notes:
        found = hub.here(CLIENTS / "download_weights.py", tmp_path / "cache", "owner/cut", local)
    assert found == [len(content), True]
    assert [note.fault for note in notes if note.host == "localhost"] == [True, False]


def test_what_no_client_sends_is_refused(hub, tmp_path):
    with hub.connected(tmp_path):
        create_repo("raw")
    sha256 = "0" * 64
    owner = {"Authorization": f"Bearer {hub.token}"}
    address = f"{hub.endpoint}/api/models/owner/raw/commit/main"
    for change in (
        {"key": "lfsFile", "value": {"path": "a.bin", "algo": "sha256", "oid": sha256, "size": 1}},
        {"key": "lfsFile", "value": {"path": "a.bin", "algo": "sha256", "oid": "../../secret"}},
        {"key": "file", "value": {"path": "../a.txt", "content": "", "encoding": "base64"}},
        {"key": "file", "value": {"path": ".gitattributes/a.txt", "content": "", "encoding": "base64"}},
        {"key": "file", "value": {"path": "README.md", "content": "LS0tCnRhZ3M6IGEKLS0tCg==", "encoding": "base64"}},
        {"key": "renamed", "value": {"path": "a.txt"}},
    ):
        assert send(address, "POST", commit_lines(change), **owner) == 400, change
    assert len(git(hub, "owner/raw", "log", "--format=%H").split()) == 1

    storage = f"{hub.storage_endpoint}/{sha256}"
    assert send(storage, "PUT", b"not what the hash says") == 400
    assert not (hub.folder / "large" / sha256).exists()
    assert send(storage, **owner) == 400  # a client that leaks its token is found out
    assert send(storage) == 404
    assert send(f"{hub.endpoint}/api/models/owner/raw/likers", **owner) == 404
    assert send(f"{hub.endpoint}/api/models/..%2F..%2Fowner/raw", **owner) == 404


def test_cards_are_checked(hub, tmp_path):
    outcomes, license_name = hub.here(CLIENTS / "push_cards.py", tmp_path)
    assert outcomes["good card"] == outcomes["good file"] == "pushed"
    assert '"license" with value "Apache License" is not valid' in outcomes["bad file"].replace("\\", "")
    assert '"license" with value "Apache License" is not valid' in outcomes["bad card"].replace("\\", "")
    assert license_name == "mit"


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ("license: apache-2.0\nlanguage: [en, zh-Hant]\ndatasets: [owner/data]\nbase_model: owner/base", None),
        ("date: 2026-01-01\ntags: []", None),
        ("tags: linformer", "must be an array"),
        ("tags: [1]", "must hold strings"),
        ("language: English", "is not valid"),
        ("datasets: [https://example.org/data]", "is not valid"),
        ("library_name: [transformers]", "must be a string"),
        ("tags: [a]\ntags: [b]", "duplicated"),
        ("- a\n- b", "not a mapping"),
        ("value: .nan", "JSON cannot"),
        ("model-index:\n- name: m\n  results:\n  - task: {type: fill-mask}\n    metrics: []", "dataset.name"),
        (
            "model-index:\n- name: m\n  results:\n  - task: {type: a}\n    dataset: {name: b, type: c}\n"
            "    metrics:\n    - {type: accuracy, value: 0.5}\n    - {type: f1}",
            "metrics[1].value",
        ),
    ],
)
def test_card_rules(metadata, problem):
    problems = read_card(f"---\n{metadata}\n---\n# Title\n")[1]
    assert not problems if problem is None else any(problem in found for found in problems), problems


def test_clients_are_alone(hub, tmp_path):
    found = hub.ask(CLIENTS / "look_around.py", tmp_path, package=False)
    assert found["files"] == []
    assert found["stdin"] == ""
    assert found["child"] == "ModuleNotFoundError: No module named 'linformer_hf'"
    assert "may not reach hub.example" in found["name"]
    assert "may not reach 192.0.2.1" in found["address"]


def test_data_sets_stream(hub, tmp_path):
    with hub.recorded() as notes:
        assert hub.ask(CLIENTS / "stream_data_sets.py", tmp_path) == {"owner/table": True, "owner/lines": True}
    assert 206 in {note.status for note in notes}  # parts of files were read in place


def test_a_hub_goes_on_where_it_stopped_and_tells_of_its_own_mistakes(tmp_path):
    with loopback_hub.serve(tmp_path / "hub") as first, first.connected(tmp_path / "cache"):
        create_repo("kept")
    with pytest.raises(urllib.error.URLError):
        send(first.endpoint)
    with pytest.raises(RuntimeError, match="JSONDecodeError"), loopback_hub.serve(tmp_path / "hub") as second:
        owner = {"Authorization": f"Bearer {second.token}"}
        assert send(f"{second.endpoint}/api/models/owner/kept", **owner) == 200
        assert send(f"{second.endpoint}/api/repos/create", "POST", b"no JSON", **owner) == 500

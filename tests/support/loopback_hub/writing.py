"""Requests that change a repo. Each works up to the last step unseen, so that one which fails leaves no trace."""

import base64
import json
from typing import Any

from dulwich.ignore import IgnoreFilter
from dulwich.lfs import LFSPointer
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .access import (
    own_repository_of,
    parameter,
    repository_not_found,
    repository_of,
    revision_of,
    signed_in,
    storage_of,
)
from .cards import FRONT_MATTER, read_card
from .errors import HubError, entry_not_found
from .storage import Repository, Storage


LARGE_SIZE = 10 * 1024**2  # bytes; from here on a file is large whatever its name
KINDS = {"model": "models", "dataset": "datasets"}


async def repository_request(request: Request) -> tuple[str, str, str, dict[str, Any]]:
    """Return user, kind and name of a repo to create or delete, and the whole request."""
    user, body = signed_in(request), await request.json()
    kind = KINDS.get(body.get("type") or "model")
    if kind is None:
        raise HubError(400, f"The loopback Hub has no repos of type {body['type']}.")
    namespace = body.get("organization") or user
    if namespace != user:
        raise HubError(403, f'You have no right to create or delete a repo under the namespace "{namespace}"')
    return user, kind, f"{namespace}/{body['name']}", body


async def create(request: Request) -> Response:
    """Create a repo; one that exists answers 409, and the clients then still read its address."""
    user, kind, repo_id, body = await repository_request(request)
    repository = storage_of(request).find(kind, repo_id)
    existed = repository is not None
    if repository is None:
        repository = storage_of(request).create(kind, repo_id, is_private(body), user)
    answer = {"url": f"{request.app.state.endpoint}/{repository.web_path}", "name": repo_id}
    if existed:
        return JSONResponse(answer | {"error": "You already created this repo"}, 409)
    return JSONResponse(answer)


def is_private(settings: dict[str, Any]) -> bool:
    """Tell whether settings ask for a private repo."""
    return settings.get("visibility") == "private"


async def delete(request: Request) -> Response:
    """Delete a repo."""
    user, kind, repo_id, _ = await repository_request(request)
    repository = storage_of(request).find(kind, repo_id)
    if repository is None:
        raise repository_not_found(user)
    storage_of(request).delete(repository)
    return JSONResponse({})


async def settings(request: Request) -> Response:
    """Make a repo private or public."""
    repository, body = own_repository_of(request), await request.json()
    repository.private = is_private(body)
    return JSONResponse({"private": repository.private})


async def create_branch(request: Request) -> Response:
    """Create a branch, from the main one if nothing else is named."""
    repository = own_repository_of(request)
    start = (await request.json()).get("startingPoint") or "main"
    repository.add_ref(f"refs/heads/{parameter(request, 'branch')}", repository.resolve(start))
    return JSONResponse({})


async def delete_branch(request: Request) -> Response:
    """Delete a branch other than the main one."""
    repository, branch = own_repository_of(request), parameter(request, "branch")
    if branch == "main":
        raise HubError(403, "The main branch cannot be deleted")
    repository.drop_ref(f"refs/heads/{branch}")
    return JSONResponse({})


async def create_tag(request: Request) -> Response:
    """Name the commit that a revision stands for now."""
    repository, commit = own_repository_of(request), revision_of(request)[1]
    repository.add_ref(f"refs/tags/{(await request.json())['tag']}", commit)
    return JSONResponse({})


async def delete_tag(request: Request) -> Response:
    """Delete a tag; the path has it where other requests have a revision."""
    repository = own_repository_of(request)
    repository.drop_ref(f"refs/tags/{parameter(request, 'revision')}")
    return JSONResponse({})


async def validate_yaml(request: Request) -> Response:
    """Check the metadata of a README; some clients ask without a token, and show the answer as text."""
    content = (await request.json())["content"]
    problems = read_card(content)[1]
    warnings = [] if FRONT_MATTER.match(content) else ["empty or missing yaml metadata in repo card"]
    answer = {"errors": messages(problems), "warnings": messages(warnings)}
    return JSONResponse(answer, 400 if problems else 200)


def messages(texts: list[str]) -> list[dict[str, str]]:
    """Wrap texts as the clients expect them."""
    return [{"message": text} for text in texts]


async def preupload(request: Request) -> Response:
    """Say of each file how it has to come, whether it is ignored, and what is there already."""
    signed_in(request)
    repository, commit = revision_of(request)
    body = await request.json()
    patterns = body.get("gitIgnore") or repository.text(commit, ".gitignore") or ""
    ignored = IgnoreFilter(patterns.encode().splitlines())
    present = repository.files(commit)
    answers = []
    for file in body["files"]:
        path = file["path"]
        is_large = file["size"] >= LARGE_SIZE or repository.is_large(commit, path)
        answer = {
            "path": path,
            "uploadMode": "lfs" if is_large else "regular",
            "shouldIgnore": bool(ignored.is_ignored(path)),
        }
        if path in present:
            entry = repository.entry(path, present[path])
            answer["oid"] = entry.sha256 or entry.blob_id
        answers.append(answer)
    return JSONResponse({"files": answers})


async def commit(request: Request) -> Response:
    """Apply a list of changes to a branch or pull request, or open a pull request with them."""
    user, repository = signed_in(request), repository_of(request)
    lines = [json.loads(line) for line in (await request.body()).split(b"\n") if line]
    header = next(line["value"] for line in lines if line["key"] == "header")
    revision, parent = parameter(request, "revision"), header.get("parentCommit")
    opens_pull_request = request.query_params.get("create_pr") == "1"
    base = repository.resolve(revision)
    if not opens_pull_request:
        check_branch(repository, revision, user)
    if parent and not base.startswith(parent):
        raise HubError(412, "A commit has happened since. Please refresh and try again.")
    files = changed_files(repository, storage_of(request), base, lines)
    message = f"{header['summary']}\n\n{header.get('description', '')}".strip()
    new = repository.commit(files, base, message, user)
    page = f"{request.app.state.endpoint}/{repository.web_path}"
    answer = {"success": True, "commitOid": new, "commitUrl": f"{page}/commit/{new}"}
    if opens_pull_request:
        number = 1 + max((int(name) for name in repository.refs("refs/pr")), default=0)
        repository.add_ref(f"refs/pr/{number}", new)
        answer["pullRequestUrl"] = f"{page}/discussions/{number}"
    else:
        repository.move_ref(repository.writable_ref(revision), base, new)
    return JSONResponse(answer)


def check_branch(repository: Repository, revision: str, user: str) -> None:
    """Let only the owner commit to a branch; a pull request is open to all."""
    is_pull_request = repository.writable_ref(revision).startswith("refs/pr/")
    if user != repository.owner and not is_pull_request:
        raise HubError(403, f"{user} has no right to write to {repository.repo_id}; open a pull request")


def changed_files(repository: Repository, storage: Storage, base: str, lines: list[dict[str, Any]]) -> dict[str, str]:
    """Return the blobs by path after a list of changes to a commit.

    Raises:
        HubError: At the first change that cannot be made.
    """
    files = repository.files(base)
    for line in lines:
        key, value = line["key"], line["value"]
        if key == "header":
            continue
        path = value["path"]
        if key == "file":
            files[checked_path(path)] = regular_blob(repository, path, base64.b64decode(value["content"]))
        elif key == "lfsFile":
            files[checked_path(path)] = repository.add_blob(pointer(storage, value))
        elif key == "deletedFile" and path in files:
            del files[path]
        elif key == "deletedFolder" and any(name.startswith(f"{path.rstrip('/')}/") for name in files):
            files = {name: blob for name, blob in files.items() if not name.startswith(f"{path.rstrip('/')}/")}
        elif key in ("deletedFile", "deletedFolder"):
            raise entry_not_found(path, base)
        else:
            raise HubError(400, f"The loopback Hub knows no change of kind {key}.")
    for path in files:
        parts = path.split("/")
        if any("/".join(parts[:count]) in files for count in range(1, len(parts))):
            raise HubError(400, f"{path} lies in a folder that is also a file.")
    return files


def checked_path(path: str) -> str:
    """Return a path that git takes, or raise."""
    if any(part in ("", ".", "..", ".git") for part in path.split("/")):
        raise HubError(400, f"{path} is not a valid path in a repo.")
    return path


def regular_blob(repository: Repository, path: str, content: bytes) -> str:
    """Store a file that came inside the commit."""
    if len(content) >= LARGE_SIZE:
        raise HubError(400, f"{path} has {len(content)} bytes and must come as a large file.")
    problems = read_card(content.decode(errors="replace"))[1] if path == "README.md" else []
    if problems:
        raise HubError(400, f"Invalid metadata in README.md: {'; '.join(problems)}")
    return repository.add_blob(content)


def pointer(storage: Storage, value: dict[str, Any]) -> bytes:
    """Return what git keeps for a large file, which must have arrived before."""
    path = storage.large_file(value["oid"])
    if not path.exists():
        raise HubError(400, f"The large file {value['path']} ({value['oid']}) was never uploaded.")
    size = path.stat().st_size
    if value.get("size", size) != size:
        raise HubError(400, f"The large file {value['path']} has {size} bytes, announced were {value['size']}.")
    return LFSPointer(value["oid"], size).to_bytes()

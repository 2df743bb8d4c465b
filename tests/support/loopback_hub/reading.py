"""Requests that change nothing."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response

from .access import caller, parameter, repository_not_found, repository_of, revision_of, signed_in, storage_of
from .cards import read_card
from .errors import entry_not_found
from .storage import Entry, Repository


async def agent_harnesses(request: Request) -> Response:
    """Answer the question that every client asks first."""
    return JSONResponse({"standardEnvVars": [], "harnesses": {}})


async def whoami(request: Request) -> Response:
    """Tell a token's owner who they are."""
    user = signed_in(request)
    token = {"displayName": "loopback", "role": "write"}
    account = {"type": "user", "id": user, "name": user, "fullname": user, "isPro": False, "orgs": []}
    return JSONResponse(account | {"auth": {"type": "access_token", "accessToken": token}})


async def nameless(request: Request) -> Response:
    """Answer for a repo without a namespace, such as `gpt2`; this Hub has none."""
    raise repository_not_found(caller(request))


async def info(request: Request) -> Response:
    """Describe a repo at a revision."""
    repository, commit = revision_of(request)
    card, _ = read_card(repository.text(commit, "README.md") or "")
    with_blobs = request.query_params.get("blobs", "").lower() in ("1", "true")
    files = [entry for entry in repository.entries(commit) if not entry.is_folder]
    description = {
        "id": repository.repo_id,
        "author": repository.owner,
        "sha": commit,
        "lastModified": date_of(repository.history(commit)[0]),
        "private": repository.private,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": tags_of(card),
        "cardData": card,
        "siblings": [sibling(entry, with_blobs) for entry in files],
    }
    taken = {key: card[key] for key in ("library_name", "pipeline_tag", "model-index") if key in card}
    return JSONResponse(description | taken, headers={"X-Repo-Commit": commit})


def tags_of(card: dict[str, Any]) -> list[str]:
    """Return the tags that a card gives a repo, in words and through its other fields."""
    tags = [card[key] for key in ("library_name", "pipeline_tag") if key in card] + list(card.get("tags") or [])
    for field, prefix in (("language", ""), ("datasets", "dataset:"), ("license", "license:")):
        values = card.get(field) or []
        tags += [prefix + value for value in ([values] if isinstance(values, str) else values)]
    return list(dict.fromkeys(tags))


def sibling(entry: Entry, with_blobs: bool) -> dict[str, Any]:
    """Describe a file for the description of its repo."""
    description: dict[str, Any] = {"rfilename": entry.path}
    if with_blobs:
        description |= {"size": entry.size, "blobId": entry.blob_id}
        if entry.sha256:
            description["lfs"] = {"size": entry.size, "sha256": entry.sha256, "pointerSize": entry.pointer_size}
    return description


def listing(entry: Entry) -> dict[str, Any]:
    """Describe a file or folder for a list of them."""
    kind = "directory" if entry.is_folder else "file"
    description: dict[str, Any] = {"type": kind, "path": entry.path, "size": entry.size, "oid": entry.blob_id}
    if entry.sha256:
        description["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return description


async def tree(request: Request) -> Response:
    """List a folder, on one page."""
    repository, commit = revision_of(request)
    entries = repository.entries(commit)
    folder = parameter(request, "path") if "path" in request.path_params else ""
    if folder and not any(entry.path == folder and entry.is_folder for entry in entries):
        raise entry_not_found(folder, commit)
    prefix = f"{folder}/" if folder else ""
    inside = [entry for entry in entries if entry.path.startswith(prefix)]
    if request.query_params.get("recursive", "").lower() not in ("1", "true"):
        inside = [entry for entry in inside if "/" not in entry.path[len(prefix) :]]
    return JSONResponse([listing(entry) for entry in inside], headers={"X-Repo-Commit": commit})


async def paths_info(request: Request) -> Response:
    """Describe those of the asked paths that exist."""
    repository, commit = revision_of(request)
    asked = parse_qs((await request.body()).decode()).get("paths", [])
    found = [listing(entry) for entry in repository.entries(commit) if entry.path in asked]
    return JSONResponse(found, headers={"X-Repo-Commit": commit})


async def refs(request: Request) -> Response:
    """List branches, tags and pull requests."""
    repository = repository_of(request)
    answer: dict[str, Any] = {"converts": []}
    for field, prefix in (("branches", "refs/heads"), ("tags", "refs/tags"), ("pullRequests", "refs/pr")):
        answer[field] = [
            {"name": name, "ref": f"{prefix}/{name}", "targetCommit": commit}
            for name, commit in repository.refs(prefix).items()
        ]
    if "include_prs" not in request.query_params:
        del answer["pullRequests"]
    return JSONResponse(answer)


async def commits(request: Request) -> Response:
    """List a revision's history, the newest commit first."""
    repository, commit = revision_of(request)
    return JSONResponse([describe_commit(step) for step in repository.history(commit)])


def describe_commit(commit: Any) -> dict[str, Any]:
    """Describe a commit for the history."""
    title, _, message = commit.message.decode().partition("\n\n")
    author = commit.author.decode().split(" <")[0]
    return {
        "id": commit.id.decode(),
        "title": title,
        "message": message,
        "date": date_of(commit),
        "authors": [{"user": author}],
    }


def date_of(commit: Any) -> str:
    """Return when a commit was made, in the Hub's form."""
    return datetime.fromtimestamp(commit.commit_time, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


async def resolve(request: Request) -> Response:
    """Send a file, or say where a large one lies: on the storage host, which must not see the token."""
    repository, commit = revision_of(request)
    entry = repository.find(commit, parameter(request, "path"))
    headers = {"X-Repo-Commit": commit, "ETag": f'"{entry.sha256 or entry.blob_id}"'}
    if entry.sha256 is None:
        return plain_answer(request, repository, entry, headers)
    headers |= {"X-Linked-ETag": headers["ETag"], "X-Linked-Size": str(entry.size)}
    return RedirectResponse(f"{request.app.state.storage_endpoint}/{entry.sha256}", 302, headers)


def plain_answer(request: Request, repository: Repository, entry: Entry, headers: dict[str, str]) -> Response:
    """Send a file that git holds itself, or the part of it that is asked for."""
    path = storage_of(request).plain_file(repository, entry)
    return FileResponse(path, headers=headers, media_type="application/octet-stream")

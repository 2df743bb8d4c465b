"""Who asks for what: the caller, the repo and the revision that a request is about."""

from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import JSONResponse

from .errors import HubError
from .storage import Repository, Storage


def storage_of(request: Request) -> Storage:
    """Return what this server keeps."""
    return request.app.state.storage


def parameter(request: Request, name: str) -> str:
    """Return a part of the path; the clients quote even the slashes of revisions and files."""
    return unquote(request.path_params[name])


def caller(request: Request) -> str | None:
    """Return the user whose token came along, or None if there was no token."""
    header = request.headers.get("authorization")
    if header is None:
        return None
    user = request.app.state.users.get(header.removeprefix("Bearer "))
    if user is None:
        raise HubError(401, "Invalid credentials in Authorization header")
    return user


def signed_in(request: Request) -> str:
    """Return the user, who must have one."""
    user = caller(request)
    if user is None:
        raise HubError(401, "Invalid username or password.")
    return user


def kind_of(request: Request) -> str:
    """Return `"models"` or `"datasets"`; the pages of models have no such word in front."""
    return "datasets" if request.scope["path"].startswith(("/api/datasets/", "/datasets/")) else "models"


def repository_of(request: Request) -> Repository:
    """Return the repo that the path names, if the caller may know that it exists."""
    user = caller(request)
    repo_id = f"{parameter(request, 'namespace')}/{parameter(request, 'name')}"
    repository = storage_of(request).find(kind_of(request), repo_id)
    if repository is None or (repository.private and user != repository.owner):
        raise repository_not_found(user)
    return repository


def repository_not_found(user: str | None) -> HubError:
    """Return the answer for a missing repo, which is also that for a private repo of someone else."""
    return HubError(401 if user is None else 404, "Repository not found", "RepoNotFound")


def own_repository_of(request: Request) -> Repository:
    """Return the repo that the path names, if the caller may change it."""
    user, repository = signed_in(request), repository_of(request)
    if user != repository.owner:
        raise HubError(403, f"{user} has no right to write to {repository.repo_id}")
    return repository


def revision_of(request: Request) -> tuple[Repository, str]:
    """Return the repo and the commit that the path names; without a revision it means the main branch."""
    repository = repository_of(request)
    revision = parameter(request, "revision") if "revision" in request.path_params else "main"
    return repository, repository.resolve(revision)


async def refuse(request: Request, error: HubError) -> JSONResponse:
    """Turn an error into the headers that the clients read."""
    headers = {"X-Error-Message": error.message, "X-Error-Code": error.code, "X-Repo-Commit": error.commit}
    sent = {name: value.encode("ascii", "replace").decode() for name, value in headers.items() if value is not None}
    return JSONResponse({"error": error.message}, error.status, sent)

"""The Hub as a web application: its addresses."""

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Host, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from . import large_files, reading, writing
from .access import refuse
from .errors import HubError
from .storage import Storage
from .traffic import Faults, Journal


API = [
    Route("/api/agent-harnesses", reading.agent_harnesses),
    Route("/api/whoami-v2", reading.whoami),
    Route("/api/validate-yaml", writing.validate_yaml, methods=["POST"]),
    Route("/api/repos/create", writing.create, methods=["POST"]),
    Route("/api/repos/delete", writing.delete, methods=["DELETE"]),
]

STORAGE_HOST = [
    Route("/{sha256}", large_files.fetch),
    Route("/{sha256}", large_files.store, methods=["PUT"]),
]


def api(kind: str) -> list[Route]:
    """Return the addresses under which a program asks about repos of a kind."""
    repo = f"/api/{kind}/{{namespace}}/{{name}}"
    return [
        Route(f"/api/{kind}/{{name}}", reading.nameless),
        Route(repo, reading.info),
        Route(f"{repo}/revision/{{revision}}", reading.info),
        Route(f"{repo}/tree/{{revision}}", reading.tree),
        Route(f"{repo}/tree/{{revision}}/{{path:path}}", reading.tree),
        Route(f"{repo}/paths-info/{{revision}}", reading.paths_info, methods=["POST"]),
        Route(f"{repo}/refs", reading.refs),
        Route(f"{repo}/commits/{{revision}}", reading.commits),
        Route(f"{repo}/settings", writing.settings, methods=["PUT"]),
        Route(f"{repo}/branch/{{branch}}", writing.create_branch, methods=["POST"]),
        Route(f"{repo}/branch/{{branch}}", writing.delete_branch, methods=["DELETE"]),
        Route(f"{repo}/tag/{{revision}}", writing.create_tag, methods=["POST"]),
        Route(f"{repo}/tag/{{revision}}", writing.delete_tag, methods=["DELETE"]),
        Route(f"{repo}/preupload/{{revision}}", writing.preupload, methods=["POST"]),
        Route(f"{repo}/commit/{{revision}}", writing.commit, methods=["POST"]),
    ]


def pages(prefix: str) -> list[Route]:
    """Return the addresses of files and of git, which for data sets have a word in front."""
    repo = f"{prefix}/{{namespace}}/{{name}}"
    return [
        Route(f"{repo}/resolve/{{revision}}/{{path:path}}", reading.resolve),
        Route(f"{repo}.git/info/lfs/objects/batch", large_files.batch, methods=["POST"]),
        Route(f"{repo}.git/info/lfs/verify", large_files.verify, methods=["POST"]),
        Route(f"{prefix}/{{name}}/resolve/{{revision}}/{{path:path}}", reading.nameless),
    ]


async def not_modelled(request: Request, error: Exception) -> object:
    """Answer what no client that was looked at asks for; a new one may need a new route."""
    message = f"The loopback Hub does not model {request.method} {request.scope['path']}."
    return await refuse(request, HubError(404, message))


class QuotedPaths:
    """Hands the path on as the client quoted it: in `refs%2Fpr%2F1` the slashes do not separate.

    Args:
        app: What answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope["raw_path"].decode()
        await self.app(scope, receive, send)


def build(folder: Path, port: int, users: dict[str, str]) -> ASGIApp:
    """Build the Hub.

    Args:
        folder: Where it keeps everything, its journal `requests.jsonl` included.
        port: Where it listens: at 127.0.0.1 as the Hub, at localhost as its storage host.
        users: Names by token.
    """
    storage_host = Router(STORAGE_HOST)
    app = Starlette(exception_handlers={HubError: refuse, 404: not_modelled, 405: not_modelled})
    app.state.storage = Storage(folder)
    app.state.users = users
    app.state.endpoint = f"http://127.0.0.1:{port}"
    app.state.storage_endpoint = f"http://localhost:{port}"
    faults = Faults(QuotedPaths(app))
    control = Route("/_faults", faults.control, methods=["POST", "DELETE"])
    app.router.routes += [control, Host("localhost", storage_host), *API]
    app.router.routes += [*api("models"), *api("datasets"), *pages("/datasets"), *pages("")]
    return Journal(faults, folder / "requests.jsonl", users)

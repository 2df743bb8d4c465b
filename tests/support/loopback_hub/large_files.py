"""Large files: where the clients are told to send them, and the storage host that takes and gives them.

The storage host is the same server under another name, `localhost`, and so another origin: a client that sends it the
Hub's token is found out.
"""

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from .access import repository_of, signed_in, storage_of
from .errors import HubError


async def batch(request: Request) -> Response:
    """Say of each announced file where to send it, unless it is stored already."""
    signed_in(request)
    repository = repository_of(request)
    state = request.app.state
    verify = {"href": f"{state.endpoint}/{repository.web_path}.git/info/lfs/verify"}
    answers = []
    for announced in (await request.json())["objects"]:
        answer = {"oid": announced["oid"], "size": announced["size"]}
        if not storage_of(request).large_file(announced["oid"]).exists():
            upload = {"href": f"{state.storage_endpoint}/{announced['oid']}"}
            answer["actions"] = {"upload": upload, "verify": verify}
        answers.append(answer)
    return JSONResponse({"transfer": "basic", "objects": answers})


async def verify(request: Request) -> Response:
    """Confirm that a file has arrived."""
    signed_in(request)
    repository_of(request)
    announced = await request.json()
    path = storage_of(request).large_file(announced["oid"])
    if not path.exists() or path.stat().st_size != announced["size"]:
        raise HubError(404, f"{announced['oid']} with {announced['size']} bytes is not stored.")
    return JSONResponse({})


async def store(request: Request) -> Response:
    """Take a file."""
    refuse_token(request)
    await storage_of(request).receive(request.stream(), request.path_params["sha256"])
    return Response()


async def fetch(request: Request) -> Response:
    """Give a file, or a part of it."""
    refuse_token(request)
    sha256 = request.path_params["sha256"]
    path = storage_of(request).large_file(sha256)
    if not path.exists():
        raise HubError(404, f"{sha256} is not stored.")
    return FileResponse(path, headers={"ETag": f'"{sha256}"'}, media_type="application/octet-stream")


def refuse_token(request: Request) -> None:
    """Refuse a request that gives the storage host what only the Hub may see."""
    if "authorization" in request.headers:
        raise HubError(400, "The storage host was sent an Authorization header.")

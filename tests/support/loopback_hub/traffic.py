"""What goes over the wire: a journal of all requests, and faults that a test asks for."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass
class Fault:
    """Something that goes wrong.

    Args:
        request: A regular expression to find in "METHOD /path", with the path still quoted.
        status: Of the answer. The clients repeat a request after 408, 429, 500, 502, 503 and 504, slowly; 507 makes
            them give up at once.
        moment: `"before"` the request has an effect; `"after"` it had one, so that the success is lost on the way
            back; `"body"`, in the middle of the answer, when the connection breaks.
        skip: How many such requests pass before.
        times: How many fail then.
    """

    request: str
    status: int = 500
    moment: str = "before"
    skip: int = 0
    times: int = 1

    def strikes(self, line: str) -> bool:
        """Tell whether this request fails, and count it."""
        if self.times == 0 or not re.search(self.request, line):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


def request_line(scope: Scope) -> str:
    """Return "METHOD /path" as it came."""
    return f"{scope['method']} {scope['raw_path'].decode()}"


def is_control(scope: Scope) -> bool:
    """Tell whether a request comes from the test and not from a client."""
    return scope["path"].startswith("/_")


class Journal:
    """Notes every request before its answer begins, so that a client that has returned is found in it.

    Args:
        app: What answers.
        path: A file, one JSON object a line.
        users: Names by token.
    """

    def __init__(self, app: ASGIApp, path: Path, users: dict[str, str]) -> None:
        self.app = app
        self.path = path
        self.users = users

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_control(scope):
            await self.app(scope, receive, send)
            return
        note = scope["note"] = self.describe(scope)

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                note["status"] = message["status"]
                with self.path.open("a") as file:
                    file.write(json.dumps(note) + "\n")
            await send(message)

        await self.app(scope, receive, send_noted)

    def describe(self, scope: Scope) -> dict[str, Any]:
        """Return what is known of a request before it is answered."""
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        token = headers.get("authorization")
        return {
            "host": headers.get("host", "").split(":")[0],
            "method": scope["method"],
            "path": scope["raw_path"].decode(),
            "query": scope["query_string"].decode(),
            "user": None if token is None else self.users.get(token.removeprefix("Bearer "), "unknown"),
            "fault": False,
        }


class Faults:
    """Lets requests fail as tests ask for it.

    Args:
        app: What answers otherwise.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.pending: list[Fault] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_client = scope["type"] == "http" and not is_control(scope)
        fault = self.pick(request_line(scope)) if is_client else None
        if fault is None:
            await self.app(scope, receive, send)
            return
        scope["note"]["fault"] = True
        if fault.moment == "body":
            await self.app(scope, receive, half_of(send))
            return
        if fault.moment == "after":
            await self.app(scope, receive, swallow)
        else:
            await Request(scope, receive).body()  # a client that is still sending would not read the answer
        message = f"fault asked for by a test: {fault.request}"
        answer = JSONResponse({"error": message}, fault.status, {"X-Error-Message": message})
        await answer(scope, receive, send)

    def pick(self, line: str) -> Fault | None:
        """Return the fault that this request meets, if any."""
        return next((fault for fault in self.pending if fault.strikes(line)), None)

    async def control(self, request: Request) -> Response:
        """Add a fault, or remove all."""
        if request.method == "DELETE":
            self.pending.clear()
        else:
            self.pending.append(Fault(**await request.json()))
        return JSONResponse({})


async def swallow(message: Message) -> None:
    """Lose an answer."""


def half_of(send: Send) -> Send:
    """Return a sender that stops in the middle of the first piece of the body; the server then hangs up."""
    stopped = False

    async def send_half(message: Message) -> None:
        nonlocal stopped
        if message["type"] == "http.response.body" and not stopped:
            stopped = True
            body = message.get("body", b"")
            await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
        elif not stopped:
            await send(message)

    return send_half

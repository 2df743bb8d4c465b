"""Run the Hub until the process that started it closes our standard input, or dies: `python -m loopback_hub FOLDER`.

The first line on standard output says, as JSON, where it listens and which tokens it knows.
"""

import json
import os
import secrets
import socket
import sys
import threading
from pathlib import Path

import uvicorn

from .app import build


USERS = ("owner", "stranger")


def main(folder: Path) -> None:
    """Serve a folder on a free port of 127.0.0.1."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    tokens = {user: f"hf_{secrets.token_hex(17)}" for user in USERS}
    app = build(folder, port, {token: user for user, token in tokens.items()})
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=2))

    def stop_with_parent() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        server.should_exit = True

    threading.Thread(target=stop_with_parent, daemon=True).start()
    sys.stdout.write(json.dumps({"port": port, "tokens": tokens}) + "\n")
    sys.stdout.flush()
    server.run(sockets=[listener])


if __name__ == "__main__":
    main(Path(sys.argv[1]))

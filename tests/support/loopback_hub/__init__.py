"""A Hugging Face Hub on this machine, for tests: the real clients push to it and load from it.

    with loopback_hub.serve(folder) as hub:
        with hub.connected(cache):
            huggingface_hub.create_repo("owner/model")
        hub.run("from transformers import AutoModel; AutoModel.from_pretrained('owner/model')", cache)

In the test's own process is ten times as fast; a process of its own shows what a fresh client sees.

It models what `transformers`, `huggingface_hub` and `datasets` ask for, with LFS for large files and without Xet. Not
modelled: quotas, gating, discussions, Spaces, the Hub's full rules for metadata. Say "tested against a loopback Hub",
not "tested on the Hub". To look at a repo with git: `git -C FOLDER/repos/models/OWNER/NAME.git log`.
"""

import io
import json
import os
import runpy
import select
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from huggingface_hub import close_session, constants, hf_api


HERE = Path(__file__).resolve().parent
START_SECONDS = 30
NOT_INHERITED = ("HF_", "HUGGING", "TRANSFORMERS_", "PYTORCH_TRANSFORMERS_", "LOOPBACK_HUB_")


@dataclass(frozen=True)
class RequestNote:
    """A request that the Hub has answered.

    Args:
        host: `"127.0.0.1"` for the Hub, `"localhost"` for its storage host.
        method: Of HTTP.
        path: As the client quoted it.
        query: What stood behind the question mark.
        user: Whose token came along: `"owner"`, `"stranger"`, `"unknown"` for a wrong token, None without one.
        fault: Whether a test asked for it to fail.
        status: Of the answer.
    """

    host: str
    method: str
    path: str
    query: str
    user: str | None
    fault: bool
    status: int


class LoopbackHub:
    """A running Hub, as tests see it.

    Args:
        folder: Where it keeps everything.
        port: Where it listens.
        tokens: Of its two users, `"owner"` and `"stranger"`; each has the namespace of that name.
    """

    def __init__(self, folder: Path, port: int, tokens: dict[str, str]) -> None:
        self.folder = folder
        self.endpoint = f"http://127.0.0.1:{port}"
        self.storage_endpoint = f"http://localhost:{port}"
        self.token = tokens["owner"]
        self.stranger_token = tokens["stranger"]

    def environment(self, cache_dir: Path | str, **changes: str | None) -> dict[str, str]:
        """Return the environment for a client.

        Args:
            cache_dir: Becomes `HF_HOME`: downloads, code of models, data sets, token. A new one for a fresh client.
            changes: Variables to set, or with None to remove: `HF_HUB_OFFLINE="1"`, `HF_TOKEN=hub.stranger_token`,
                `HF_TOKEN=None` for a client that has not signed in.
        """
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(NOT_INHERITED) and not name.lower().endswith("_proxy")
        }
        paths = [str(HERE / "in_every_client"), *inherited.get("PYTHONPATH", "").split(os.pathsep)]
        settings: dict[str, str | None] = {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(cache_dir),
            "HF_TOKEN": self.token,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "DISABLE_SAFETENSORS_CONVERSION": "1",  # a service elsewhere
        }
        return {name: value for name, value in (inherited | settings | changes).items() if value is not None}

    def run(
        self,
        code: str | Path,
        cache_dir: Path | str,
        *arguments: str | Path,
        package: bool = True,
        check: bool = True,
        timeout: float = 300,
        **changes: str | None,
    ) -> subprocess.CompletedProcess[str]:
        """Run Python code as a client: a new process, in an empty folder, that nobody can answer questions.

        Args:
            code: Python code, or the path of a script.
            cache_dir: As in `environment`.
            arguments: The code's `sys.argv[1:]`.
            package: Whether it can import `linformer_hf`.
            check: Whether to fail the test, with what the client wrote, if the code raises.
            timeout: In seconds.
            changes: As in `environment`.

        Returns:
            With `returncode`, `stdout` and `stderr`.
        """
        hidden = {} if package else {"LOOPBACK_HUB_HIDES": "linformer_hf"}
        program = [str(code)] if isinstance(code, Path) else ["-c", code]
        with tempfile.TemporaryDirectory(prefix="client-") as empty:
            client = subprocess.run(
                [sys.executable, *program, *map(str, arguments)],
                cwd=empty,
                env=self.environment(cache_dir, **hidden | changes),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        assert client.returncode == 0 or not check, f"{client.stdout}\n{client.stderr}"
        return client

    def ask(self, code: str | Path, cache_dir: Path | str, *arguments: str | Path, **options: Any) -> Any:
        """Run Python code as `run` does, and return what it writes as JSON on the last line."""
        return json.loads(self.run(code, cache_dir, *arguments, **options).stdout.splitlines()[-1])

    @contextmanager
    def connected(self, cache_dir: Path | str, token: str | None = "", offline: bool = False) -> Iterator[None]:
        """Let `huggingface_hub` in this process be a client within the block.

        Transformers' own caches stay as they are: load models with `run`.

        Args:
            cache_dir: As in `environment`.
            token: That of the client, by default the owner's; None for a client that has not signed in.
            offline: Whether it may ask nobody.
        """
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(NOT_INHERITED) and not name.lower().endswith("_proxy")
        }
        token = self.token if token == "" else token
        settings = {
            "ENDPOINT": self.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": f"{self.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
            "HF_HUB_CACHE": str(Path(cache_dir, "hub")),
            "HF_TOKEN_PATH": str(Path(cache_dir, "token")),
            "HF_HUB_OFFLINE": offline,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_DISABLE_TELEMETRY": True,
        }
        with (
            mock.patch.multiple(constants, **settings),
            mock.patch.object(hf_api.api, "endpoint", self.endpoint),
            mock.patch.dict(os.environ, environment | ({} if token is None else {"HF_TOKEN": token}), clear=True),
        ):
            close_session()  # one that was opened before may use a proxy
            try:
                yield
            finally:
                close_session()

    def here(self, client: Path, cache_dir: Path | str, *arguments: str | Path, **options: Any) -> Any:
        """Run a script in this process as `connected` says, and return what it writes as JSON on the last line."""
        said = io.StringIO()
        argv = [str(client), *map(str, arguments)]
        with self.connected(cache_dir, **options), mock.patch.object(sys, "argv", argv), redirect_stdout(said):
            runpy.run_path(str(client), run_name="__main__")
        return json.loads(said.getvalue().splitlines()[-1])

    def requests(self) -> list[RequestNote]:
        """Return all requests so far, the oldest first."""
        path = self.folder / "requests.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [RequestNote(**json.loads(line)) for line in lines]

    @contextmanager
    def recorded(self) -> Iterator[list[RequestNote]]:
        """Give a list that holds, after the block, the requests made in it."""
        before, notes = len(self.requests()), []
        yield notes
        notes += self.requests()[before:]

    @contextmanager
    def failing(self, request: str, **fault: Any) -> Iterator[None]:
        """Let requests fail within the block.

        Args:
            request: A regular expression to find in "METHOD /path", with the path quoted: `"POST .*/commit/"`, and for
                large files `"PUT /[0-9a-f]{64}"`.
            fault: `status`, `moment`, `skip`, `times`, as in `traffic.Fault`.
        """
        self._control("POST", {"request": request, **fault})
        try:
            yield
        finally:
            self._control("DELETE", {})

    def git_folder(self, repo_id: str, kind: str = "models") -> Path:
        """Return the bare git repository of a repo."""
        return self.folder / "repos" / kind / f"{repo_id}.git"

    def _control(self, method: str, body: dict[str, Any]) -> None:
        request = urllib.request.Request(f"{self.endpoint}/_faults", json.dumps(body).encode(), method=method)
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).close()


@contextmanager
def serve(folder: Path | str) -> Iterator[LoopbackHub]:
    """Run a Hub for the length of the block.

    Args:
        folder: Where it keeps everything. A folder from an earlier run goes on, with new tokens.

    Raises:
        RuntimeError: At the start if it does not come up; at the end if it broke down over a request without being
            asked to, which is a mistake in the Hub and not in what is tested.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / "requests.jsonl"
    journal.unlink(missing_ok=True)
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "loopback_hub", str(folder)],
            cwd=HERE.parent,  # where Python finds it
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        hub = LoopbackHub(folder, **_first_line(process, folder))
        yield hub
    finally:
        _stop(process)
    crashes = [note for note in hub.requests() if note.status == 500 and not note.fault]
    if crashes:
        raise RuntimeError(f"The loopback Hub broke down over {crashes}:\n{(folder / 'server.log').read_text()}")


def _stop(process: subprocess.Popen[str]) -> None:
    """End the server, which goes by itself when nothing can write to it any more."""
    process.stdin.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _first_line(process: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """Return what the server says when it listens."""
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if ready else ""
    if not line:
        process.kill()
        raise RuntimeError(f"The loopback Hub did not start:\n{(folder / 'server.log').read_text()}")
    return json.loads(line)


__all__ = ["LoopbackHub", "RequestNote", "serve"]

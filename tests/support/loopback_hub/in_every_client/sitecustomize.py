"""Runs first in every client process: keeps it on this machine, and hides packages from it.

Python imports a module of this name, if it finds one, before anything else; so it also reaches the processes that a
client starts. The clients themselves stay as they are.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "", None)
HIDDEN = os.environ.get("LOOPBACK_HUB_HIDES", "").split()


def stay_here(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse to look up or connect to any other machine, and say so even if the caller hides the error."""
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # anything else is a file
    else:
        return
    if isinstance(host, bytes):
        host = host.decode()
    if host not in LOCAL_HOSTS:
        sys.stderr.write(f"loopback_hub: refused to reach {host}\n")
        raise ConnectionRefusedError(f"a client of the loopback Hub may not reach {host}")


class HiddenPackages:
    """Makes packages look as if they were not installed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Fail for a hidden package, and leave all others to the next finder."""
        if name.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


sys.addaudithook(stay_here)
sys.meta_path.insert(0, HiddenPackages)

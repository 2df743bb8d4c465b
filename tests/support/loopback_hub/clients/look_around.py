"""Tell what a client can see and reach."""

import json
import os
import socket
import subprocess
import sys


def reaches(host):
    try:
        socket.create_connection((host, 443), timeout=1).close()
        return True
    except OSError as error:
        return str(error)


look = "import importlib.util; importlib.util.find_spec('linformer_hf')"
child = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
found = {
    "files": os.listdir(),
    "stdin": sys.stdin.read(),
    "child": child.stderr.strip().rpartition("\n")[2],
    "name": reaches("hub.example"),
    "address": reaches("192.0.2.1"),
}
json.dump(found, sys.stdout)

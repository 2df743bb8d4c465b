# Sourced by quickstart.sh and test.sh: leaves in $python an interpreter that has the package and its extras ($1).
# An active environment is used; otherwise .venv is made. A torch that is there stays, whatever build it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -n "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ]; then
    python=python
else
    [ -x .venv/bin/python ] || python3 -m venv .venv
    python=.venv/bin/python
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: Python 3.11 or newer is needed; this is $("$python" --version)" >&2
    exit 2
fi

constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
cp scripts/constraints.txt "$constraints"
if "$python" -c 'import torch' 2>/dev/null; then
    grep -v '^torch==' scripts/constraints.txt >"$constraints"
else
    # by itself, so that a wheel at hand is taken before any other package asks for a newer torch
    "$python" -m pip install --quiet "$(grep '^torch==' scripts/constraints.txt)"
fi
"$python" -m pip install --quiet --constraint "$constraints" --editable ".[$1]"

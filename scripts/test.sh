#!/usr/bin/env bash
# Set up an environment and run the whole test suite; arguments go to pytest.
source "$(dirname "$0")/environment.sh" test
"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m pytest "$@"

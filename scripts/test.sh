#!/usr/bin/env bash
# Set up an environment and run the whole test suite; arguments go to pytest.
source "$(dirname "$0")/environment.sh" test
"$python" -m ruff check .
"$python" -m ruff format --check .
# a process for each of two cores; the tests of a file stay together, because they share what is slow to make
"$python" -m pytest --numprocesses 2 --dist loadfile "$@"

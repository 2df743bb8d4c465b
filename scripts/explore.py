r"""Open the explorer: when attention is low in rank, what a Linformer saves, what its slots read, what it answers.

With the quickstart's model, or a small untrained one where that is missing:

    python scripts/explore.py

With a checkpoint of yours, written as a folder that is ready to be a Space:

    python scripts/explore.py --model_name_or_path runs/quickstart --space runs/space
"""

from linformer_hf.common.command_line import run
from linformer_hf.explorer.page import ExplorerArguments, explore


if __name__ == "__main__":
    run(explore, ExplorerArguments, description=__doc__)

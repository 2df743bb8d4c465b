r"""Set runs side by side: a table of numbers from their records, and their held-out losses in one picture.

With the quickstart's run, and others behind it:

    python scripts/tabulate_runs.py --runs runs/quickstart --numbers hidden_perplexity tokens_per_second \
        --output_dir runs/table
"""

from linformer_hf.common.command_line import run
from linformer_hf.training.run_tables import RunTableArguments, tabulate_runs


if __name__ == "__main__":
    run(tabulate_runs, RunTableArguments, description=__doc__)

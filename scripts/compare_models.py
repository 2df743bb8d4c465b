r"""Compare a Linformer with the dense encoder it came from: what they answer, how fast, and in how much memory.

On text of your own that neither has been trained on:

    python scripts/compare_models.py --dense_name_or_path FacebookAI/roberta-base --model_name_or_path runs/distilled \
        --output_dir runs/comparison --validation_file corpus.txt --lengths 64 256 512
"""

from linformer_hf.common.command_line import run
from linformer_hf.conversion.comparison import ComparisonArguments, compare_models


if __name__ == "__main__":
    run(compare_models, ComparisonArguments, description=__doc__)

r"""Give a saved Linformer another n, the longest input, another k, the slots, or both; it keeps what it has learned.

Four times as long, with as many new slots, which average the new tokens:

    python scripts/resize_checkpoint.py --model_name_or_path runs/converted --output_dir runs/long \
        --max_seq_length 2048 --projected_length 256
"""

from linformer_hf.common.command_line import run
from linformer_hf.conversion.checkpoint_resizing import ResizingArguments, resize_checkpoint


if __name__ == "__main__":
    run(resize_checkpoint, ResizingArguments, description=__doc__)

r"""Export a saved Linformer to ONNX, check it against torch, and measure size and speed.

A folder that runs with onnxruntime and tokenizers alone; its README has five lines that do so:

    python scripts/export_onnx.py --model_name_or_path runs/quickstart --output_dir runs/quickstart-onnx

With weights in eight bits beside it, and what they change on your own text:

    python scripts/export_onnx.py --model_name_or_path runs/quickstart --output_dir runs/quickstart-int8 --quantize \
        --sample_file corpus.txt
"""

from linformer_hf.common.command_line import run
from linformer_hf.sharing.onnx_export import ExportArguments, export_checkpoint


if __name__ == "__main__":
    run(export_checkpoint, ExportArguments, description=__doc__)

r"""Turn a dense encoder (BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA) into a Linformer with its weights.

A local folder or a model on the Hub, at its own length:

    python scripts/convert_checkpoint.py --model_name_or_path FacebookAI/roberta-base --output_dir runs/converted

Four times as long:

    python scripts/convert_checkpoint.py --model_name_or_path FacebookAI/roberta-base --output_dir runs/longer \
        --max_seq_length 2048 --projected_length 256
"""

from linformer_hf.common.command_line import run
from linformer_hf.conversion.checkpoint_conversion import ConversionArguments, convert_checkpoint


if __name__ == "__main__":
    run(convert_checkpoint, ConversionArguments, description=__doc__)

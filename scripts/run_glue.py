r"""Fine-tune an encoder, Linformer or dense, on a GLUE task or on any table of labelled texts.

A minute on a CPU, from the model that scripts/quickstart.sh leaves:

    python scripts/run_glue.py --model_name_or_path runs/quickstart --task_name sst2 --output_dir runs/sst2 \
        --do_train --do_eval --max_train_samples 8000 --num_train_epochs 2 --learning_rate 5e-4 \
        --per_device_train_batch_size 32

Your own table, with columns of texts and labels; a dense model is one flag away, for comparison:

    python scripts/run_glue.py --model_name_or_path runs/quickstart --train_file reviews.csv --text_column review \
        --label_column stars --output_dir runs/reviews --do_train --do_eval --num_train_epochs 3 --learning_rate 5e-4
"""

from transformers import TrainingArguments

from linformer_hf.common.command_line import run
from linformer_hf.training.finetuning import FinetuningArguments, finetune


if __name__ == "__main__":
    run(finetune, FinetuningArguments, TrainingArguments, description=__doc__)

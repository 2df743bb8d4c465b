r"""Teach a converted Linformer to do what the dense encoder does that it came from; text is all it takes.

With the Linformer that scripts/convert_checkpoint.py has made:

    python scripts/distill.py --model_name_or_path runs/converted --teacher_name_or_path FacebookAI/roberta-base \
        --output_dir runs/distilled --do_train --do_eval --train_file corpus.txt --max_steps 2000 \
        --learning_rate 1.5e-4 --warmup_steps 50 --per_device_train_batch_size 16
"""

from transformers import TrainingArguments

from linformer_hf.common.command_line import run
from linformer_hf.training.distillation import DistillationArguments, distill


if __name__ == "__main__":
    run(distill, DistillationArguments, TrainingArguments, description=__doc__)

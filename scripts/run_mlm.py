r"""Pretrain an encoder on masked words, from the built-in sample, local files or a data set on the Hub.

A minute on a CPU, on the manual that every Python carries:

    python scripts/run_mlm.py --output_dir runs/first --do_train --do_eval --max_steps 60 --learning_rate 2e-3 \
        --max_seq_length 128 --projected_length 32 --vocab_size 2048 --per_device_train_batch_size 32 \
        --config_overrides hidden_size=128,num_hidden_layers=2,num_attention_heads=4,intermediate_size=512

Your own text, with blocks of 128 tokens first and of 512 afterwards:

    python scripts/run_mlm.py --train_file corpus.txt --output_dir runs/mine --do_train --do_eval \
        --max_seq_length 512 --short_seq_length 128 --max_steps 10000 --learning_rate 5e-4 \
        --per_device_train_batch_size 16
"""

from transformers import TrainingArguments

from linformer_hf.common.command_line import run
from linformer_hf.training.pretraining import PretrainingArguments, pretrain


if __name__ == "__main__":
    run(pretrain, PretrainingArguments, TrainingArguments, description=__doc__)

r"""Measure seconds and memory of a Linformer beside RoBERTa and other efficient encoders, against n and k.

Two layers of RoBERTa-base width, encoder only:

    python scripts/measure_efficiency.py --output_dir runs/efficiency --tasks inference --lengths 512 2048 8192

A masked-language-model step of all twelve layers, beside another Linformer:

    python scripts/measure_efficiency.py --output_dir runs/efficiency_mlm --tasks mlm --lengths 512 \
        --batch_tokens 4096 --num_hidden_layers 12 --peers lucidrains

A run that was stopped goes on where it was when it is started again.
"""

from linformer_hf.benchmark.efficiency import EfficiencyArguments, measure_efficiency
from linformer_hf.common.command_line import run


if __name__ == "__main__":
    run(measure_efficiency, EfficiencyArguments, description=__doc__)

r"""Decompose the attention maps of an encoder on text, and say which k keeps most of them.

The quickstart's Linformer on the manual that every Python carries:

    python scripts/analyze_spectrum.py --model_name_or_path runs/quickstart --output_dir runs/spectrum

Your own text, up to a thousand blocks of it, and a k for the share of the energy that you name:

    python scripts/analyze_spectrum.py --model_name_or_path runs/quickstart --output_dir runs/spectrum \
        --train_file corpus.txt --max_texts 1000 --energy 0.9
"""

from linformer_hf.analysis.spectrum import SpectrumArguments, analyze_spectrum
from linformer_hf.common.command_line import run


if __name__ == "__main__":
    run(analyze_spectrum, SpectrumArguments, description=__doc__)

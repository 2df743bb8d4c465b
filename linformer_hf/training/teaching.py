"""Teaching a converted model on a list of texts, from Python."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from .distillation import DistillationArguments, distill


try:
    from datasets import Dataset, DatasetDict
except ImportError as error:
    raise ImportError("Teaching a model needs datasets: pip install linformer_hf[train]") from error


def teach(
    model_name_or_path: str | Path,
    teacher_name_or_path: str | Path,
    texts: Sequence[str],
    output_dir: str | Path,
    held_out_texts: Sequence[str] | None = None,
    held_out_share: float = 0.05,
    max_seq_length: int | None = None,
    max_steps: int = 1000,
    batch_size: int = 8,
    learning_rate: float = 1e-4,
    use_muon: bool = False,
    seed: int = 42,
    **training_options: Any,
) -> dict[str, float]:
    """Teach a converted Linformer what its dense parent computes, on texts without labels, and save it.

    Texts are packed into blocks of `max_seq_length` tokens. Progress and remaining time are shown, and at the end a
    table: length, cosine to the parent, speed. A call that was stopped goes on where it was if it is repeated.

    Args:
        model_name_or_path: The converted model, as `convert_pretrained` writes it.
        teacher_name_or_path: The dense encoder that it was converted from, on the Hub or in a folder.
        texts: Documents to learn from.
        output_dir: Folder of the taught model, with the other files of the converted one.
        held_out_texts: Documents to measure on. None holds a share of `texts` out.
        held_out_share: This share.
        max_seq_length: Length of a block in tokens; None means the model's n.
        max_steps: Steps of training.
        batch_size: Blocks per step.
        learning_rate: Of the layers; that of the projections is 3e-4.
        use_muon: Train the matrices of the layers with Muon instead of AdamW.
        seed: Of all random numbers.
        **training_options: Further arguments of `TrainingArguments`.

    Returns:
        The numbers of `distill`, measured on held-out texts: `embedding_cosine`, `embedding_cosine_16` and so on.

    Raises:
        ValueError: If models and texts do not fit, or there are too few texts.
    """
    table = Dataset.from_dict({"text": [text for text in texts if text.strip()]})
    if held_out_texts is None:
        if len(table) < 2:
            raise ValueError(f"`texts` holds {len(table)} texts; give at least two, one of which is held out.")
        parts = table.train_test_split(test_size=max(1, round(held_out_share * len(table))), seed=seed)
        documents = DatasetDict(train=parts["train"], validation=parts["test"])
    else:
        documents = DatasetDict(train=table, validation=Dataset.from_dict({"text": list(held_out_texts)}))
    arguments = DistillationArguments(
        model_name_or_path=str(model_name_or_path),
        teacher_name_or_path=str(teacher_name_or_path),
        max_seq_length=max_seq_length,
        use_muon=use_muon,
    )
    options = {
        "output_dir": str(output_dir),
        "do_train": True,
        "do_eval": True,
        "max_steps": max_steps,
        "per_device_train_batch_size": batch_size,
        "learning_rate": learning_rate,
        "warmup_steps": max_steps // 20,
        "seed": seed,
        "report_to": "none",
    }
    return distill(arguments, TrainingArguments(**{**options, **training_options}), documents)

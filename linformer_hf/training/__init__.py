"""Pretraining, fine-tuning and distillation with the Trainer, and tables of their runs."""

from ..common.lazy import export_lazily


__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "pretraining": ["PretrainingArguments", "PretrainingTrainer", "pretrain"],
        "finetuning": ["FinetuningArguments", "finetune"],
        "distillation": ["DistillationArguments", "distill"],
        "teaching": ["DistillationTrainer", "TeachingArguments", "distillation_loss"],
        "run_tables": ["RunTableArguments", "tabulate_runs"],
    },
)

"""Pretraining, fine-tuning and distillation with the Trainer, and tables of their runs."""

from ..common.lazy import export_lazily


__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "pretraining": ["PretrainingArguments", "pretrain"],
        "pretraining_trainer": ["PretrainingTrainer"],
        "finetuning": ["FinetuningArguments", "finetune"],
        "distillation": ["DistillationArguments", "distill"],
        "distillation_loss": ["LossWeights", "distillation_loss"],
        "distillation_trainer": ["DistillationTrainer", "TeachingArguments"],
        "run_tables": ["RunTableArguments", "tabulate_runs"],
        "teaching": ["teach"],
    },
)

"""One training step of each head and problem type, cut into batches, steps and processes as the caller wishes."""

import tempfile

import torch
from conftest import FIRST_WORD, VOCABULARY, gradients, tiny_model
from torch.utils.data import default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments

from linformer_hf import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)


EXAMPLES, LENGTH = 16, 19

TASKS = {
    "masked-lm": (LinformerForMaskedLM, {}),
    "masked-lm-sparse": (LinformerForMaskedLM, {"sparse_prediction": True}),
    "one-label": (LinformerForSequenceClassification, {"num_labels": 3}),
    "many-labels": (
        LinformerForSequenceClassification,
        {"num_labels": 3, "problem_type": "multi_label_classification"},
    ),
    "regression": (LinformerForSequenceClassification, {"num_labels": 1, "problem_type": "regression"}),
    "tokens": (LinformerForTokenClassification, {"num_labels": 3}),
    "choice": (LinformerForMultipleChoice, {}),
    "question": (LinformerForQuestionAnswering, {}),
}


def examples_of(task):
    """Sixteen examples of uneven lengths; where labels belong to tokens, the first examples have far more of them."""
    generator = torch.Generator().manual_seed(0)
    choices = (2,) if task == "choice" else ()
    ids = torch.randint(FIRST_WORD, VOCABULARY, (EXAMPLES, *choices, LENGTH), generator=generator)
    lengths = torch.randint(5, LENGTH + 1, (EXAMPLES, *choices, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    columns = {"input_ids": ids, "attention_mask": mask}
    if task in ("masked-lm", "masked-lm-sparse", "tokens"):
        labelled = torch.arange(LENGTH) < torch.arange(EXAMPLES, 0, -1)[:, None]
        words = ids % 3 if task == "tokens" else ids
        columns["labels"] = torch.where(labelled & (mask == 1), words, -100)
    elif task == "many-labels":
        columns["labels"] = torch.randint(2, (EXAMPLES, 3), generator=generator).float()
    elif task == "regression":
        columns["labels"] = torch.randn(EXAMPLES, generator=generator)
    elif task == "question":
        columns["start_positions"] = torch.randint(5, (EXAMPLES,), generator=generator)
        columns["end_positions"] = torch.randint(5, (EXAMPLES,), generator=generator)
    else:
        columns["labels"] = torch.randint(2, (EXAMPLES,), generator=generator)
    return columns


def model_of(task):
    model_class, fields = TASKS[task]
    return tiny_model(model_class, torch.float32, **fields)


class KeepGradients(TrainerCallback):
    """Copy the gradients that the optimizer would use."""

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.gradients = gradients(model.module if hasattr(model, "module") else model)


def train_one_step(task, batch_size, accumulation_steps):
    """Let a Trainer take one step over all sixteen examples that moves nothing.

    Returns:
        The loss it logs and the gradients it hands to the optimizer.
    """
    columns = examples_of(task)
    rows = [{name: column[i] for name, column in columns.items()} for i in range(EXAMPLES)]
    keeper = KeepGradients()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation_steps,
            max_steps=1,
            learning_rate=0.0,
            max_grad_norm=0.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            ddp_find_unused_parameters=False,
        )
        trainer = Trainer(
            model_of(task), arguments, train_dataset=rows, data_collator=default_collate, callbacks=[keeper]
        )
        trainer.train()
    return trainer.state.log_history[0]["loss"], keeper.gradients


def train_steps_of_two():
    """Take every step in two processes, 2 x 4 x 2 examples a step."""
    return {task: train_one_step(task, batch_size=4, accumulation_steps=2) for task in TASKS}

"""Several processes that train one model, where there are GPUs and where there are none."""

import os

import torch


USE_CPU = "ACCELERATE_USE_CPU"  # accelerate's own switch, which the Trainer reads too


def join_processes_on_cpus() -> None:
    """Let processes that `torchrun` started train together on CPUs where there is no accelerator.

    The Trainer takes a single CPU otherwise, so that each process would train a model of its own. To be called before
    `TrainingArguments` are made, which start the communication.
    """
    was_launched = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in os.environ
    if was_launched and not torch.accelerator.is_available():
        os.environ.setdefault(USE_CPU, "true")

"""The options that decide what a training ends with, kept beside its checkpoints, so that no folder mixes two runs."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from ..common.files import read_json, write_json
from ..common.records import FILE_NAME, read_results
from ..common.secrets import hide_everywhere, is_token_field
from ..data.file_formats import expand_files


OPTIONS = "training_options.json"
# of the Trainer's options, those on which the weights depend
OF_THE_TRAINER = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "auto_find_batch_size", "dataloader_drop_last"),
    *("train_sampling_strategy", "seed", "data_seed", "average_tokens_across_devices"),
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "optim", "optim_args", "optim_target_modules"),
    *("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"),
    *("label_smoothing_factor", "neftune_noise_alpha", "bf16", "fp16"),
)
# these may change when a run goes on: how far it goes, and which of its checkpoints is kept
OF_THE_LENGTH = (
    *("max_steps", "num_train_epochs", "warmup_steps", "load_best_model_at_end", "metric_for_best_model"),
    *("early_stopping_patience", "resume_from_checkpoint"),
)
# of a task's own options, those on which the weights do not depend
OF_OTHER_WORK = {
    *("trust_remote_code", "preprocessing_num_workers", "max_eval_samples"),
    *("test_file", "max_predict_samples", "tfidf_baseline"),
}
FILES = ("train_file", "validation_file")


def deciding_options(arguments: Any, training: TrainingArguments, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options on which the weights depend that a training ends with, as they are written to a file.

    Args:
        arguments: Of the task; all of its options count but those of other work.
        training: The Trainer's own arguments.
        data: Further facts that decide what is trained on.
    """
    own = {field.name: getattr(arguments, field.name) for field in fields(arguments) if is_deciding(field.name)}
    of_the_trainer = {name: getattr(training, name) for name in (*OF_THE_TRAINER, *OF_THE_LENGTH) if name not in own}
    options = {**own, **of_the_trainer}
    sizes = {f"bytes of {name}": total_size(own[name]) for name in FILES if own.get(name)}
    return comparable({**options, **sizes, **data}, training.output_dir)


def is_deciding(name: str) -> bool:
    """Tell whether the weights depend on an option of a task."""
    return name not in OF_OTHER_WORK and not is_token_field(name)


def total_size(names: Sequence[str]) -> int | None:
    """Return the size of files in bytes; None where one is missing, which is refused where they are read."""
    try:
        return sum(map(os.path.getsize, expand_files(names)))
    except ValueError:
        return None


def comparable(options: Mapping[str, Any], output_dir: str) -> dict[str, Any]:
    """Return options as a file holds them, with one spelling of what can be spelled in several ways.

    Files count by their last names, so that a run may be moved; the folder of a model counts by its absolute path.
    """
    spelled = {}
    for name, value in options.items():
        if name in FILES and value:
            value = [Path(file).name for file in value]
        elif name.endswith("name_or_path") and value and Path(value).is_dir():
            value = str(Path(value).resolve())
        elif name == "metric_for_best_model":
            value = value or "loss"
        elif name == "resume_from_checkpoint":
            is_own = value and Path(value).resolve().parent == Path(output_dir).resolve()
            value = None if is_own or str(value).lower() in ("true", "false") else value
        spelled[name] = None if value in ("", [], {}) else value
    return hide_everywhere(json.loads(json.dumps(spelled, default=str)))


def write_options(folder: str | Path, options: Mapping[str, Any]) -> Path:
    """Write the options of a training that begins, and return the file."""
    return write_json(Path(folder) / OPTIONS, options, indent=2)


def read_options(folder: Path, arguments: Any, training: TrainingArguments) -> dict[str, Any]:
    """Read the options of the training that a folder holds; of one by version 0.1.0, those that its record tells.

    Args:
        folder: Of the run.
        arguments: Of the task; their class says what options are by default, which records leave out.
        training: Likewise.

    Returns:
        Nothing where the folder tells nothing of them.
    """
    if (folder / OPTIONS).is_file():
        return read_json(folder / OPTIONS)
    if not (folder / FILE_NAME).is_file():
        return {}
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in (*fields(training), *fields(arguments))
        if field.default is not MISSING or field.default_factory is not MISSING
    }
    told = {**defaults, **read_results(folder).get("arguments", {})}
    deciding = {field.name for field in fields(arguments) if is_deciding(field.name)}
    names = deciding | {*OF_THE_TRAINER, *OF_THE_LENGTH}
    # a record leaves dictionaries out, whether they are defaults or not
    known = {name: told[name] for name in names & told.keys() if name != "lr_scheduler_kwargs"}
    return comparable(known, training.output_dir)


def check_same_options(folder: Path, earlier: Mapping[str, Any], asked: Mapping[str, Any], is_finished: bool) -> None:
    """Check that a call asks for the run that a folder holds.

    Args:
        folder: Of the run.
        earlier: The options of the run.
        asked: Those of this call.
        is_finished: Whether the run is finished and nothing will be trained. Otherwise it goes on, and may be longer.

    Raises:
        ValueError: If it asks for another one; the message names the options and both values.
    """
    names = [name for name in asked if name in earlier and (is_finished or name not in OF_THE_LENGTH)]
    differing = [name for name in names if asked[name] != earlier[name]]
    differing += [] if is_finished else shortened(earlier, asked)
    if differing:
        listed = "; ".join(f"{label(name)} was {shown(earlier[name])}, now {shown(asked[name])}" for name in differing)
        raise ValueError(f"{folder} holds a run with other options: {listed}. Name a new --output_dir.")


def shortened(earlier: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Return the option of a run's length if it got smaller: steps where there are steps, epochs otherwise."""
    if not {"max_steps", "num_train_epochs"} <= earlier.keys():
        return []
    in_steps = [options["max_steps"] > 0 for options in (earlier, asked)]
    name = "max_steps" if any(in_steps) else "num_train_epochs"
    return [name] if in_steps[0] != in_steps[1] or asked[name] < earlier[name] else []


def label(name: str) -> str:
    """Write the name of an option as it is given, and that of another fact as it is."""
    return name if " " in name else f"--{name}"


def shown(value: Any) -> str:
    """Write the value of an option as it is given."""
    if value is None:
        return "not given"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def check_evaluated_model(folder: Path, arguments: Any) -> None:
    """Check that an evaluation does not write its numbers among those of another model.

    Args:
        folder: Where it writes.
        arguments: Of the task; the models are those named by its options that end in `name_or_path`.

    Raises:
        ValueError: If the folder holds another model, or numbers of one.
    """
    models = {
        field.name: getattr(arguments, field.name)
        for field in fields(arguments)
        if field.name.endswith("name_or_path")
    }
    asked = comparable(models, str(folder))
    evaluated = models["model_name_or_path"]
    if evaluated is None or Path(evaluated).resolve() == folder.resolve():
        return
    if (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds a model, and {evaluated} is another one: name a new --output_dir.")
    if not (folder / FILE_NAME).is_file():
        return
    measured = comparable(read_results(folder).get("arguments", {}), str(folder))
    for name, model in asked.items():
        if measured.get(name) != model:
            raise ValueError(
                f"{folder} holds numbers of --{name} {shown(measured.get(name))}, and this call measures {model}: "
                "name a new --output_dir."
            )

"""Export to ONNX: a folder that runs without torch, checked against it and measured."""

import copy
import logging as standard_logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..common.files import check_new_folder, read_json, whole_or_nothing, write_text
from ..common.heads import HEADS
from ..common.loading import LoadingArguments, check_tokenizer, load_config
from ..common.measurement import Stopwatch
from ..common.records import model_facts, write_results
from ..modeling_linformer import LinformerForMultipleChoice, LinformerPreTrainedModel
from .onnx_agreement import (
    draw_inputs,
    largest_difference,
    measure_quantized,
    measure_seconds,
    open_session,
    read_sample,
    run_model,
)
from .onnx_readme import MODEL, QUANTIZED, input_names, render_readme


try:
    import onnxscript  # noqa: F401 (torch.onnx needs it, and would say so only after the tracing)
    from onnxruntime import __version__ as onnxruntime_version
    from onnxruntime.quantization import quantize_dynamic
except ImportError as error:
    raise ImportError(
        "The ONNX export needs onnx, onnxscript and onnxruntime: pip install linformer_hf[onnx]"
    ) from error


logger = logging.get_logger(__name__)
EXPORTABLE_ATTENTION = ("eager", "sdpa")


@dataclass(kw_only=True)
class ExportArguments(LoadingArguments):
    """What is exported, and where to."""

    model_name_or_path: str = field(metadata={"help": "A Linformer: a saved folder, or a name on the Hub."})
    output_dir: str = field(metadata={"help": "A new folder for model.onnx, its tokenizer and its README."})
    quantize: bool = field(
        default=False, metadata={"help": f"Also write {QUANTIZED}, with 8-bit weights, and measure it."}
    )
    sample_file: str | None = field(
        default=None,
        metadata={"help": "Texts, one a line, on which --quantize compares predictions. By default, Python's manual."},
    )


class BoundedModel(nn.Module):
    """A model with tensors as inputs and outputs that fails on more than n tokens, in onnxruntime as in torch.

    onnxruntime does not know n, and would give wrong outputs for longer inputs. So the mask is multiplied by a row of
    at most n ones: for longer inputs the shapes do not match, and onnxruntime raises an error.

    Args:
        model: A Linformer with any head, or none.
    """

    def __init__(self, model: LinformerPreTrainedModel) -> None:
        super().__init__()
        self.model = model
        ones = torch.ones(model.config.max_position_embeddings, dtype=torch.long, device=model.device)
        self.register_buffer("ones", ones, persistent=False)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Return the model's tensors, in its order."""
        attention_mask = attention_mask * self.ones[: attention_mask.shape[-1]]
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return tuple(run_model(self.model, inputs).values())


def export_checkpoint(arguments: ExportArguments) -> dict[str, float]:
    """Export a checkpoint, measure the export, and write a record.

    Args:
        arguments: The checkpoint, the folder, and whether to quantize.

    Returns:
        The numbers of `export_onnx`, of `measure_seconds` and, if quantized, of `measure_quantized`.

    Raises:
        ValueError: If the checkpoint is no Linformer, model or tokenizer cannot be exported, the folder is in use, or
            there is no text to measure on.
    """
    if arguments.sample_file is not None and not arguments.quantize:
        raise ValueError("--sample_file is only read with --quantize; give both or neither.")
    watch = Stopwatch()
    folder = check_new_folder(arguments.output_dir)
    texts = read_sample(arguments.sample_file) if arguments.quantize else []
    loading = arguments.loading()
    model = load_linformer(arguments.model_name_or_path, **loading).eval()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model_name_or_path, **loading)
    names = input_names(tokenizer)
    numbers = export_onnx(model, tokenizer, folder, arguments.quantize)
    sessions = {"onnx": open_session(folder / MODEL)}
    if arguments.quantize:
        sessions["int8"] = open_session(folder / QUANTIZED)
        numbers |= measure_quantized(model, tokenizer, sessions["int8"], names, texts)
    numbers |= measure_seconds(model, sessions, names)
    about = {"model": model_facts(model), "head": type(model).__name__, "onnxruntime": onnxruntime_version}
    write_results(folder, numbers | watch.read(), (arguments,), about)
    logger.info(report(numbers, model.config.max_position_embeddings))
    logger.info(
        f"{folder / 'README.md'} has five lines of Python that run the model without torch; results.json there has "
        "the numbers. To share the export beside the weights, move the folder into that of the model, as `onnx`, and "
        "give `linformer push`."
    )
    return numbers


def load_linformer(
    name: str, revision: str = "main", trust_remote_code: bool = False, token: str | None = None
) -> LinformerPreTrainedModel:
    """Load a checkpoint with the head that it was saved with, in single precision.

    Args:
        name: A folder, or a name on the Hub.
        revision: Branch, tag or commit on the Hub.
        trust_remote_code: Whether a configuration of another kind may be read by code on the Hub.
        token: Access token of the Hub.

    Raises:
        ValueError: If it is not a Linformer, or its configuration does not name its head.
    """
    if Path(name).is_dir():
        read_json(Path(name, "config.json"))
    config = load_config(name, revision=revision, trust_remote_code=trust_remote_code, token=token)
    if config.model_type != "linformer":
        raise ValueError(f"{name} holds a {config.model_type}, not a Linformer; name a folder that holds one.")
    class_name = (config.architectures or ["no head"])[0]
    classes = {head.linformer_class.__name__: head.linformer_class for head in HEADS}
    if class_name not in classes:
        raise ValueError(f"`architectures` in the config.json of {name} names {class_name}; save the model again.")
    return classes[class_name].from_pretrained(
        name, revision=revision, token=token, dtype=torch.float32, attn_implementation="sdpa"
    )


def export_onnx(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str | Path, quantize: bool = False
) -> dict[str, float]:
    """Write a folder that onnxruntime runs: model.onnx, config.json, tokenizer, and a README with five lines of code.

    Batch size and length are dynamic, up to n tokens. The inputs are `input_ids`, `attention_mask` and, where the
    tokenizer makes them, `token_type_ids`; the outputs have the names that they have in Transformers. Weights of large
    models, close to the 2 GB that a file can hold, go into a second file, model.onnx.data.

    Args:
        model: A Linformer with any head, or none, and any projection, in single precision.
        tokenizer: Its tokenizer, one with a tokenizer.json.
        folder: A new or empty folder.
        quantize: Also write model_quantized.onnx, with 8-bit weights.

    Returns:
        `max_difference`, from `largest_difference`; `torch_bytes` of the weights, `onnx_bytes` of the export and,
        if quantized, `int8_bytes`.

    Raises:
        ValueError: If the model or the tokenizer cannot be exported, or the folder is in use. Nothing is written then.
        RuntimeError: If the outputs of onnxruntime and torch differ by more than rounding.
    """
    folder = Path(folder)
    check_exportable(model, tokenizer)
    check_new_folder(folder)
    was_training = model.training
    try:
        program = trace(model.eval(), input_names(tokenizer))
        with whole_or_nothing(folder):
            return write_export(program, model, tokenizer, folder, quantize)
    finally:
        model.train(was_training)


def write_export(
    program: torch.onnx.ONNXProgram,
    model: LinformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    quantize: bool,
) -> dict[str, float]:
    """Write the traced model and the files beside it; return the numbers of `export_onnx`."""
    program.save(folder / MODEL)
    session = open_session(folder / MODEL)
    difference = largest_difference(model, session, input_names(tokenizer))
    numbers = {
        "max_difference": difference,
        "torch_bytes": sum(weight.nbytes for weight in model.parameters()),
        "onnx_bytes": sum(file.stat().st_size for file in folder.glob(f"{MODEL}*")),
    }
    if quantize:
        with quiet():
            quantize_dynamic(folder / MODEL, folder / QUANTIZED, per_channel=True)
        numbers["int8_bytes"] = (folder / QUANTIZED).stat().st_size
    save_config(model, folder)
    save_tokenizer(tokenizer, folder, model.config.max_position_embeddings)
    outputs = {output.name: output.shape for output in session.get_outputs()}
    write_text(folder / "README.md", render_readme(model, tokenizer, outputs, difference, quantize))
    return numbers


def check_exportable(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that model and tokenizer can be exported.

    Raises:
        ValueError: With the reason why not, and the repair.
    """
    if not isinstance(model, LinformerPreTrainedModel):
        raise ValueError(f"The model is a {type(model).__name__}; only the Linformers of linformer_hf are exported.")
    attention = model.config._attn_implementation
    if attention not in EXPORTABLE_ATTENTION:
        raise ValueError(
            f"The attention implementation is {attention!r}, which ONNX does not support; load the model with "
            '`attn_implementation="sdpa"`.'
        )
    if model.dtype != torch.float32:
        raise ValueError(
            f"The weights are in {model.dtype}, and onnxruntime computes in float32 on CPUs; call `model.float()`."
        )
    if not tokenizer.is_fast:
        raise ValueError(
            f"The tokenizer, a {type(tokenizer).__name__}, has no tokenizer.json, so it needs transformers to run; "
            "use a fast tokenizer."
        )
    check_tokenizer(tokenizer, model, "the model")


def trace(model: LinformerPreTrainedModel, names: list[str]) -> torch.onnx.ONNXProgram:
    """Translate a model into ONNX operators, with dynamic batch size, number of choices and length."""
    longest = model.config.max_position_embeddings
    # torch takes a size of 1 for a constant, the number of windows included
    example = draw_inputs(model, names, batch_size=2, num_tokens=max(2, longest - 1))
    axes = ("batch", "choices", "tokens") if isinstance(model, LinformerForMultipleChoice) else ("batch", "tokens")
    dynamic = {name: dict.fromkeys(range(len(axes)), torch.export.Dim.DYNAMIC) for name in names}
    with quiet():
        # torch.onnx can trace too, but silently makes a size constant where it cannot keep it dynamic
        traced = torch.export.export(BoundedModel(model), (), example, dynamic_shapes=dynamic, strict=False)
        return torch.onnx.export(
            traced,
            dynamo=True,
            verbose=False,
            input_names=names,
            output_names=list(run_model(model, draw_inputs(model, names, 1, 1))),
            dynamic_shapes={name: dict(enumerate(axes)) for name in names},
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the exporters' warnings, which a user can do nothing about. Errors pass."""
    root, handler = standard_logging.getLogger(), standard_logging.NullHandler()
    disabled = root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        standard_logging.disable(standard_logging.WARNING)
        root.addHandler(handler)  # else the first message would give the root a handler for good
        try:
            yield
        finally:
            root.removeHandler(handler)
            standard_logging.disable(disabled)


def save_config(model: LinformerPreTrainedModel, folder: Path) -> None:
    """Save the configuration with the name of the head, and without the Python files that only torch needs."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.to_json_file(folder / "config.json")


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, num_tokens: int) -> None:
    """Save a tokenizer whose tokenizer.json alone truncates texts to n tokens and pads batches."""
    tokenizer.save_pretrained(folder)
    file = str(folder / "tokenizer.json")
    alone = Tokenizer.from_file(file)
    alone.enable_truncation(num_tokens)
    alone.enable_padding(pad_id=tokenizer.pad_token_id or 0, pad_token=tokenizer.pad_token or "[PAD]")
    alone.save(file)


def report(numbers: dict[str, float], num_tokens: int) -> str:
    """Describe size, agreement and speed of an export, one sentence for each file and each comparison."""
    sentences = [
        f"{MODEL}: {numbers['onnx_bytes'] / 1e6:.1f} MB; largest difference from torch "
        f"{numbers['max_difference']:.0e}; {numbers['onnx_speedup']:.2f} times as fast as torch at {num_tokens} "
        "tokens."
    ]
    if "int8_bytes" in numbers:
        sentences.append(
            f"{QUANTIZED}: {numbers['int8_bytes'] / 1e6:.1f} MB; mean difference "
            f"{numbers['int8_mean_difference']:.1e}, largest {numbers['int8_max_difference']:.1e}; "
            f"{numbers['int8_speedup']:.2f} times as fast as torch."
        )
    if "int8_agreement" in numbers:
        sentences.append(f"With 8-bit weights, {numbers['int8_agreement']:.1%} of the predictions are the same.")
    if "accuracy" in numbers:
        sentences.append(
            f"Masked tokens predicted correctly: {numbers['accuracy']:.1%}, and {numbers['int8_accuracy']:.1%} with "
            "8-bit weights."
        )
    return "\n".join(sentences)

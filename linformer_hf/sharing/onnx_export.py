"""ONNX: a model that runs without torch, with its tokenizer and five lines that show how."""

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
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..common.heads import HEADS
from ..common.loading import check_tokenizer
from ..common.records import Stopwatch, check_new_folder, model_facts, whole_or_nothing, write_results
from ..modeling_linformer import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerPreTrainedModel,
)
from .hub import read_json
from .onnx_agreement import (
    draw_inputs,
    largest_difference,
    measure_quantized,
    measure_seconds,
    open_session,
    read_sample,
    run_model,
)


try:
    import onnxscript  # noqa: F401 (torch.onnx needs it, and would say so only after the tracing)
    from onnxruntime import InferenceSession
    from onnxruntime import __version__ as onnxruntime_version
    from onnxruntime.quantization import quantize_dynamic
except ImportError as error:
    raise ImportError(
        "The ONNX export needs onnx, onnxscript and onnxruntime: pip install linformer_hf[onnx]"
    ) from error


logger = logging.get_logger(__name__)
MODEL, QUANTIZED = "model.onnx", "model_quantized.onnx"
EXPORTABLE_ATTENTION = ("eager", "sdpa")

# the inputs of an exported model, and where the tokenizers library keeps them
ENCODED = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
OUTPUTS = {
    "last_hidden_state": "a vector for each token",
    "logits": "a score for each word, label or choice, as the head has it",
    "start_logits": "a score for each token as the first of the answer",
    "end_logits": "a score for each token as the last of the answer",
}
README = """\
# A Linformer for onnxruntime

`{head}` with n = {longest}, k = {projected_length}, projection `{projection_type}`, sharing `{projection_sharing}`.
Five lines run it in this folder, without PyTorch (`pip install onnxruntime tokenizers`):

```python
{code}
```

| output | shape | meaning |
| --- | --- | --- |
{outputs}

- Inputs are integers of 64 bits, of any batch size and of 1 to {longest} tokens. In `attention_mask`, 1 is a token and
  0 is padding, which may stand anywhere.
- `tokenizer.json` cuts texts to {longest} tokens. A longer input is never answered: onnxruntime raises an error at a
  `Mul` node, where the mask meets a row of {longest} ones.
- On random input of 1, 9 and {longest} tokens, padded and not, PyTorch answers the same within {difference:.0e}.
{quantized}"""
QUANTIZED_NOTE = f"- `{QUANTIZED}` is the same with weights in eight bits: smaller, and a little less exact.\n"


@dataclass
class ExportArguments:
    """What is exported, and where to."""

    model_name_or_path: str = field(metadata={"help": "A Linformer: a saved folder, or a name on the Hub."})
    output_dir: str = field(metadata={"help": "A new folder for model.onnx, its tokenizer and its README."})
    quantize: bool = field(
        default=False, metadata={"help": f"Also write {QUANTIZED}, with weights in eight bits, and measure it."}
    )
    sample_file: str | None = field(
        default=None,
        metadata={"help": "Text to measure eight bits on, a line each. By default, paragraphs of Python's manual."},
    )


class BoundedModel(nn.Module):
    """A model as the file holds it: tensors in, tensors out, and an error past n tokens.

    A runtime does not know n, and past it would answer wrongly. So the mask is multiplied by ones, one for each
    token but n at most: past n the shapes do not match, and the runtime stops.

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
    """Export a checkpoint, measure what came out, and leave a record.

    Args:
        arguments: The checkpoint, the folder, and whether eight bits are wanted.

    Returns:
        The numbers of `export_onnx`, of `measure_seconds` and, with eight bits, of `measure_quantized`.

    Raises:
        ValueError: If the checkpoint is no Linformer, model or tokenizer cannot be exported, the folder is in use, or
            there is no text to measure on.
    """
    watch = Stopwatch()
    texts = read_sample(arguments.sample_file)
    model = load_linformer(arguments.model_name_or_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model_name_or_path)
    folder, names = Path(arguments.output_dir), input_names(tokenizer)
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
        f"{folder / 'README.md'} has five lines that run it without torch; the numbers are in results.json there. To "
        f"share it beside the weights:\n\n    hf upload you/my-linformer {folder} onnx\n"
    )
    return numbers


def load_linformer(name: str) -> LinformerPreTrainedModel:
    """Load a checkpoint with the head that it was saved with, in single precision.

    Raises:
        ValueError: If it is something else than a Linformer, or does not say which head it has.
    """
    if Path(name).is_dir():
        read_json(Path(name, "config.json"))
    config = AutoConfig.from_pretrained(name)
    if config.model_type != "linformer":
        raise ValueError(f"{name} holds a {config.model_type}, not a Linformer; name a folder that holds one.")
    named = (config.architectures or ["no head"])[0]
    head = next((head.linformer_class for head in HEADS if head.linformer_class.__name__ == named), None)
    if head is None:
        raise ValueError(f"`architectures` in the config.json of {name} names {named}; save the model anew.")
    return head.from_pretrained(name, dtype=torch.float32, attn_implementation="sdpa")


def export_onnx(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str | Path, quantize: bool = False
) -> dict[str, float]:
    """Write a folder that onnxruntime runs: model.onnx, config.json, tokenizer, and a README with five lines of code.

    Batch and length are free, up to n tokens. The file takes `input_ids`, `attention_mask` and, where the tokenizer
    makes them, `token_type_ids`; its outputs have the host's names. Large models (torch draws the line below the
    2 GB that a file can hold) have their weights in a second file, model.onnx.data.

    Args:
        model: A Linformer with any head, or none, and any projection, in single precision.
        tokenizer: Its tokenizer, one with a tokenizer.json.
        folder: A new or empty folder.
        quantize: Also write model_quantized.onnx, with weights in eight bits.

    Returns:
        `max_difference`, from `largest_difference`; `torch_bytes` of the weights, `onnx_bytes` of the export and,
        with eight bits, `int8_bytes`.

    Raises:
        ValueError: If the model or the tokenizer cannot be exported, or the folder is in use. Nothing is written then.
        RuntimeError: If onnxruntime does not answer as torch does.
    """
    folder, names = Path(folder), input_names(tokenizer)
    check_exportable(model, tokenizer, folder)
    was_training = model.training
    try:
        program = trace(model.eval(), names)
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
    """Write what was traced and all that belongs beside it, checked against torch; the numbers of `export_onnx`."""
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
    readme = render_readme(model, tokenizer, session, difference, quantize)
    (folder / "README.md").write_text(readme, encoding="utf-8")
    return numbers


def input_names(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the inputs of the exported model; token types are one where the tokenizer makes them."""
    return [name for name in ENCODED if name != "token_type_ids" or name in tokenizer.model_input_names]


def check_exportable(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Check that an export can succeed.

    Raises:
        ValueError: With what stands in its way, and the repair.
    """
    if not isinstance(model, LinformerPreTrainedModel):
        raise ValueError(f"The model is a {type(model).__name__}; only the Linformers of linformer_hf are exported.")
    attention = model.config._attn_implementation
    if attention not in EXPORTABLE_ATTENTION:
        raise ValueError(
            f"The model attends by {attention!r}, which ONNX has no operator for; load it with "
            '`attn_implementation="sdpa"`.'
        )
    if model.dtype != torch.float32:
        raise ValueError(
            f"The model is in {model.dtype}, and onnxruntime computes on CPUs in float32; call `model.float()`."
        )
    if not tokenizer.is_fast:
        raise ValueError(
            f"The tokenizer, a {type(tokenizer).__name__}, has no tokenizer.json, so nothing could run it without "
            "transformers; take a fast one."
        )
    check_tokenizer(tokenizer, model, "the model")
    check_new_folder(folder)


def trace(model: LinformerPreTrainedModel, names: list[str]) -> torch.onnx.ONNXProgram:
    """Translate a model into ONNX operators, free in batch, choices and length."""
    longest = model.config.max_position_embeddings
    # a size of 1 would count as fixed, the number of windows included
    example = draw_inputs(model, names, batch_size=2, num_tokens=max(2, longest - 1))
    axes = ("batch", "choices", "tokens") if isinstance(model, LinformerForMultipleChoice) else ("batch", "tokens")
    free = {name: dict.fromkeys(range(len(axes)), torch.export.Dim.DYNAMIC) for name in names}
    with quiet():
        # torch.onnx would trace by itself too, but where that cannot leave a size free, it fixes the size
        traced = torch.export.export(BoundedModel(model), (), example, dynamic_shapes=free, strict=False)
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
    """Keep the exporters' warnings from the user, who can do nothing about them; errors pass."""
    root, handler = standard_logging.getLogger(), standard_logging.NullHandler()
    disabled = root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        standard_logging.disable(standard_logging.WARNING)
        root.addHandler(handler)  # a root without one is given one for good by the first who logs through it
        try:
            yield
        finally:
            root.removeHandler(handler)
            standard_logging.disable(disabled)


def save_config(model: LinformerPreTrainedModel, folder: Path) -> None:
    """Save the configuration, and in it the head; the code that torch would need stays out."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.to_json_file(folder / "config.json")


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, num_tokens: int) -> None:
    """Save a tokenizer whose tokenizer.json, read by itself, cuts texts to n tokens and pads batches."""
    tokenizer.save_pretrained(folder)
    file = str(folder / "tokenizer.json")
    alone = Tokenizer.from_file(file)
    alone.enable_truncation(num_tokens)
    alone.enable_padding(pad_id=tokenizer.pad_token_id or 0, pad_token=tokenizer.pad_token or "[PAD]")
    alone.save(file)


def render_readme(
    model: LinformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    session: InferenceSession,
    difference: float,
    quantized: bool,
) -> str:
    """Render the README of an exported folder."""
    outputs = [
        f"| `{output.name}` | {' × '.join(map(str, output.shape))} | {OUTPUTS[output.name]} |"
        for output in session.get_outputs()
    ]
    return README.format(
        head=type(model).__name__,
        longest=model.config.max_position_embeddings,
        projected_length=model.config.projected_length,
        projection_type=model.config.projection_type,
        projection_sharing=model.config.projection_sharing,
        code=example_code(model, tokenizer),
        outputs="\n".join(outputs),
        difference=difference,
        quantized=QUANTIZED_NOTE if quantized else "",
    )


def example_code(model: LinformerPreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Write five lines that run an exported model on texts that suit its head."""
    texts = ["The boat is on the river.", "Two bridges cross it."]
    if isinstance(model, LinformerForMaskedLM) and tokenizer.mask_token:
        texts = [f"The boat is on the {tokenizer.mask_token}.", f"Two {tokenizer.mask_token} cross it."]
    elif isinstance(model, LinformerForMultipleChoice):
        texts = [("The bridge is closed.", "We take the boat."), ("The bridge is closed.", "It is a bridge.")]
    elif isinstance(model, LinformerForQuestionAnswering):
        texts = [("Where is the boat?", "The boat is on the river.")]
    rows = "[[{}]]" if isinstance(model, LinformerForMultipleChoice) else "[{}]"
    feeds = [f'"{name}": ' + rows.format(f"text.{ENCODED[name]} for text in texts") for name in input_names(tokenizer)]
    return "\n".join(
        (
            "import onnxruntime, tokenizers",
            'session = onnxruntime.InferenceSession("model.onnx")',
            'tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")',
            f"texts = tokenizer.encode_batch({texts})",
            f"outputs = session.run(None, {{{', '.join(feeds)}}})",
        )
    )


def report(numbers: dict[str, float], num_tokens: int) -> str:
    """Say what the export is worth, a line for each file."""
    lines = [
        f"{MODEL}: {numbers['onnx_bytes'] / 1e6:.1f} MB; differs from torch by {numbers['max_difference']:.0e} at "
        f"most; {numbers['onnx_speedup']:.2f} times as fast at {num_tokens} tokens."
    ]
    if "int8_bytes" in numbers:
        lines.append(
            f"{QUANTIZED}: {numbers['int8_bytes'] / 1e6:.1f} MB; differs by {numbers['int8_mean_difference']:.1e} on "
            f"average, {numbers['int8_max_difference']:.1e} at most; {numbers['int8_speedup']:.2f} times as fast."
        )
    if "int8_agreement" in numbers:
        lines.append(f"Eight bits leave {numbers['int8_agreement']:.1%} of the highest scores the highest.")
    if "accuracy" in numbers:
        lines.append(
            f"Hidden words filled in as they were: {numbers['accuracy']:.1%}, and {numbers['int8_accuracy']:.1%} with "
            "eight bits."
        )
    return "\n".join(lines)

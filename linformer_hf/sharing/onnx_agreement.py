"""How far the outputs of onnxruntime and torch differ, with 32-bit and with 8-bit weights, and how fast each is."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..common.measurement import STEADY_SECONDS, median_speedup, seconds_in_turns
from ..modeling_linformer import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForSequenceClassification,
    LinformerModel,
    LinformerPreTrainedModel,
)


try:
    import onnxruntime
except ImportError as error:
    raise ImportError("Running an ONNX file needs onnxruntime: pip install linformer_hf[onnx]") from error


Inputs = dict[str, torch.Tensor]
Outputs = dict[str, torch.Tensor]

TOLERANCE = 1e-4  # absolute up to 1, relative above
SAMPLE_TEXTS = 64
SAMPLE_CHARACTERS = 200  # of the shortest paragraph of the sample
MASKED_FROM, MASKED_EVERY = 2, 7  # tokens of the sample that a masked language model predicts: 2, 9, 16, …
TIMED_RUNS = 5


def open_session(file: Path) -> onnxruntime.InferenceSession:
    """Open an ONNX file on the CPU, with as many threads as torch has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def run_session(session: onnxruntime.InferenceSession, inputs: Inputs) -> Outputs:
    """Return the outputs of onnxruntime, by name."""
    values = session.run(None, {name: tensor.cpu().numpy() for name, tensor in inputs.items()})
    return {output.name: torch.from_numpy(value) for output, value in zip(session.get_outputs(), values)}


def run_model(model: PreTrainedModel, inputs: Inputs) -> Outputs:
    """Return the tensors among the outputs of a model, by name."""
    outputs = model(**inputs, return_dict=True)
    return {name: value for name, value in outputs.items() if torch.is_tensor(value)}


def without_padding(values: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """Return the rows of real tokens of an output with a vector for each token, and any other output as it is."""
    return values[inputs["attention_mask"].cpu() != 0] if values.dim() == 3 else values


def draw_inputs(
    model: LinformerPreTrainedModel, names: list[str], batch_size: int, num_tokens: int, padded: slice | None = None
) -> Inputs:
    """Draw a random input, the same at each call.

    Args:
        model: Whose vocabulary is drawn from.
        names: Which of `input_ids`, `attention_mask` and `token_type_ids`.
        batch_size: B.
        num_tokens: N.
        padded: Which tokens of the last sequence are padding.

    Returns:
        Tensors of shape `(B, N)`, or `(B, 2, N)` for multiple choice.
    """
    choices = (2,) if isinstance(model, LinformerForMultipleChoice) else ()
    shape = (batch_size, *choices, num_tokens)
    generator = torch.Generator().manual_seed(num_tokens)
    mask = torch.ones(shape, dtype=torch.long)
    if padded is not None:
        mask[-1, ..., padded] = 0
    inputs = {
        "input_ids": torch.randint(model.config.vocab_size, shape, generator=generator),
        "attention_mask": mask,
        "token_type_ids": torch.randint(model.config.type_vocab_size, shape, generator=generator),
    }
    return {name: inputs[name].to(model.device) for name in names}


@torch.no_grad()
def largest_difference(
    model: LinformerPreTrainedModel, session: onnxruntime.InferenceSession, names: list[str]
) -> float:
    """Return the largest difference between outputs of onnxruntime and torch.

    They are compared at lengths 1, 9 and n, in batches of 1 and 3, with padding on the left, on the right and in the
    middle of the last sequence of each batch. Outputs at padded positions are not compared.

    Args:
        model: The model, in evaluation mode.
        session: What was exported from it.
        names: Its inputs.

    Raises:
        RuntimeError: If it is larger than rounding explains.
    """
    longest = model.config.max_position_embeddings
    largest = 0.0
    for batch_size, num_tokens in product((1, 3), sorted({1, min(9, longest), longest})):
        third = num_tokens // 3
        for padded in (slice(third), slice(num_tokens - third, None), slice(third, 2 * third)):
            inputs = draw_inputs(model, names, batch_size, num_tokens, padded)
            found = run_session(session, inputs)
            for name, expected in run_model(model, inputs).items():
                expected, actual = without_padding(expected.cpu(), inputs), without_padding(found[name], inputs)
                difference = (actual - expected).abs().max().item()
                if not torch.allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE):
                    raise RuntimeError(
                        f"onnxruntime and torch differ in `{name}` by {difference:.1e} for {batch_size} sequences of "
                        f"{num_tokens} tokens; do not use the file."
                    )
                largest = max(largest, difference)
    return largest


def read_sample(file: str | None) -> list[str]:
    """Read at most 64 texts to compare outputs on: lines of a file, or paragraphs of Python's built-in manual.

    Raises:
        ValueError: If there is no such file, or it holds no text.
    """
    if file is None:
        paragraphs = [text for topic in sorted(topics) for text in topics[topic].split("\n\n")]
        texts = [text for text in paragraphs if len(text) >= SAMPLE_CHARACTERS]
    elif Path(file).is_file():
        texts = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    else:
        raise ValueError(f"{file}: there is no such file.")
    if not texts:
        raise ValueError(f"{file}: the file holds no text.")
    step = math.ceil(len(texts) / SAMPLE_TEXTS)
    return texts[::step]


@torch.no_grad()
def measure_quantized(
    model: LinformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    session: onnxruntime.InferenceSession,
    names: list[str],
    texts: list[str],
) -> dict[str, float]:
    """Compare the outputs with 8-bit weights to those of torch on texts.

    Args:
        model: The model, in evaluation mode.
        tokenizer: Its tokenizer.
        session: Its export with 8-bit weights.
        names: Its inputs.
        texts: The texts. In each, every seventh token is masked for a masked language model to predict.

    Returns:
        `int8_max_difference` and `int8_mean_difference` of all outputs; for models that predict classes
        `int8_agreement`, the share of equal predictions; for a masked language model also `accuracy` and
        `int8_accuracy`, the shares of masked tokens that torch and the 8-bit weights predict correctly.
    """
    masks_tokens = isinstance(model, LinformerForMaskedLM) and tokenizer.mask_token_id is not None
    predicted = (0, slice(MASKED_FROM, -1, MASKED_EVERY)) if masks_tokens else slice(None)
    largest, total, count = 0.0, 0.0, 0
    predictions, int8_predictions, masked_tokens = [], [], []
    for inputs in sample_inputs(model, tokenizer, names, texts):
        if masks_tokens:
            masked_tokens.append(inputs["input_ids"][predicted].cpu().clone())
            inputs["input_ids"][predicted] = tokenizer.mask_token_id
        found = run_session(session, inputs)
        for name, expected in run_model(model, inputs).items():
            expected = expected.cpu()
            difference = (found[name] - expected).abs()
            largest = max(largest, difference.max().item())
            total += difference.sum().item()
            count += difference.numel()
            predictions.append(expected[predicted].argmax(-1).flatten())
            int8_predictions.append(found[name][predicted].argmax(-1).flatten())
    numbers = {"int8_max_difference": largest, "int8_mean_difference": total / count}
    ours, int8_ours = torch.cat(predictions), torch.cat(int8_predictions)
    if not isinstance(model, LinformerModel) and not is_regression(model):
        numbers["int8_agreement"] = share(ours == int8_ours)
    if masks_tokens:
        tokens = torch.cat(masked_tokens)
        numbers["accuracy"] = share(ours == tokens)
        numbers["int8_accuracy"] = share(int8_ours == tokens)
    return numbers


def sample_inputs(
    model: LinformerPreTrainedModel, tokenizer: PreTrainedTokenizerBase, names: list[str], texts: list[str]
) -> Iterator[Inputs]:
    """Yield the inputs for each text; for multiple choice, those for each two texts as two choices."""
    has_choices = isinstance(model, LinformerForMultipleChoice)
    step = 2 if has_choices else 1
    for start in range(0, len(texts) - step + 1, step):
        encoded = tokenizer(
            texts[start : start + step],
            padding=has_choices,
            truncation=True,
            max_length=model.config.max_position_embeddings,
            return_tensors="pt",
        )
        inputs = {name: encoded[name].to(model.device) for name in names}
        yield {name: tensor[None] for name, tensor in inputs.items()} if has_choices else inputs


def is_regression(model: LinformerPreTrainedModel) -> bool:
    """Tell whether a model predicts numbers, and no class with the highest score."""
    has_one_output = isinstance(model, LinformerForSequenceClassification) and model.config.num_labels == 1
    return has_one_output or model.config.problem_type == "regression"


def share(is_so: torch.Tensor) -> float:
    """Return the share of true entries, NaN where there are none."""
    return is_so.float().mean().item()


@torch.no_grad()
def measure_seconds(
    model: LinformerPreTrainedModel, sessions: dict[str, onnxruntime.InferenceSession], names: list[str]
) -> dict[str, float]:
    """Time one sequence of n tokens without padding, in eager torch and in onnxruntime.

    Args:
        model: The model, in evaluation mode.
        sessions: Its exports, by the prefix of their numbers.
        names: Its inputs.

    Returns:
        `torch_seconds`, and `<name>_seconds` and `<name>_speedup` over torch for each session: medians over rounds in
        which each runs once, after one run to warm up.
    """
    inputs = draw_inputs(model, names, 1, model.config.max_position_embeddings)
    steps = {"torch": partial(run_model, model, inputs)}
    for name, session in sessions.items():
        steps[name] = partial(run_session, session, inputs)
    for step in steps.values():
        step()
    seconds = seconds_in_turns(steps, TIMED_RUNS, model.device, STEADY_SECONDS)
    numbers = {f"{name}_seconds": median(measured) for name, measured in seconds.items()}
    return numbers | {f"{name}_speedup": median_speedup(seconds["torch"], seconds[name]) for name in sessions}

"""How closely onnxruntime answers as torch does, with full weights and with eight bits, and how fast."""

import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

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
MASKED_FROM, MASKED_EVERY = 2, 7  # which tokens of the sample a masked language model has to fill
TIMED_RUNS = 5


def open_session(file: Path) -> onnxruntime.InferenceSession:
    """Open an ONNX file on the CPU, with as many threads as torch has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def run_session(session: onnxruntime.InferenceSession, inputs: Inputs) -> Outputs:
    """Return what onnxruntime answers, by name."""
    values = session.run(None, {name: tensor.cpu().numpy() for name, tensor in inputs.items()})
    return {output.name: torch.from_numpy(value) for output, value in zip(session.get_outputs(), values)}


def run_model(model: PreTrainedModel, inputs: Inputs) -> Outputs:
    """Return the tensors that a model answers with, by name."""
    outputs = model(**inputs, return_dict=True)
    return {name: value for name, value in outputs.items() if torch.is_tensor(value)}


def at_tokens(values: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """Take the real tokens out of an answer with a vector for each token; other answers stay as they are."""
    return values[inputs["attention_mask"].cpu() != 0] if values.dim() == 3 else values


def draw_inputs(
    model: LinformerPreTrainedModel, names: list[str], batch_size: int, num_tokens: int, padded: slice | None = None
) -> Inputs:
    """Draw an input, the same each time.

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
    """Return by how much onnxruntime and torch differ at most.

    They are asked at lengths 1, 9 and n, in batches of 1 and 3, with padding on the left, on the right and in the
    middle; all but the last sequence of a batch have none. What they say of padding itself is not compared.

    Args:
        model: The model, in evaluation mode.
        session: What was exported from it.
        names: Its inputs.

    Raises:
        RuntimeError: If it is more than rounding explains.
    """
    longest = model.config.max_position_embeddings
    largest = 0.0
    for batch_size, num_tokens in product((1, 3), sorted({1, min(9, longest), longest})):
        third = num_tokens // 3
        for padded in (slice(third), slice(num_tokens - third, None), slice(third, 2 * third)):
            inputs = draw_inputs(model, names, batch_size, num_tokens, padded)
            found = run_session(session, inputs)
            for name, expected in run_model(model, inputs).items():
                expected, actual = at_tokens(expected.cpu(), inputs), at_tokens(found[name], inputs)
                difference = (actual - expected).abs().max().item()
                if not torch.allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE):
                    raise RuntimeError(
                        f"onnxruntime and torch differ in `{name}` by {difference:.1e} for {batch_size} times "
                        f"{num_tokens} tokens; do not use the file."
                    )
                largest = max(largest, difference)
    return largest


def read_sample(file: str | None) -> list[str]:
    """Read texts to compare answers on, at most 64: lines of a file, or paragraphs of the manual inside Python.

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
    return texts[:: -(-len(texts) // SAMPLE_TEXTS)]


@torch.no_grad()
def measure_quantized(
    model: LinformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    session: onnxruntime.InferenceSession,
    names: list[str],
    texts: list[str],
) -> dict[str, float]:
    """Measure what eight bits change on texts.

    Args:
        model: The model, in evaluation mode.
        tokenizer: Its tokenizer.
        session: What was exported from it, in eight bits.
        names: Its inputs.
        texts: The texts; of each, a masked language model has to fill every seventh token.

    Returns:
        `int8_max_difference` and `int8_mean_difference` of all outputs; `int8_agreement`, the share of highest scores
        that stay the highest, where there are scores; of a masked language model also `accuracy` and
        `int8_accuracy`, the shares of hidden tokens that torch and eight bits fill in as they were.
    """
    largest, total, count = 0.0, 0.0, 0
    choices, int8_choices, hidden = [], [], []
    for inputs in sample_inputs(model, tokenizer, names, texts):
        places = ...
        if isinstance(model, LinformerForMaskedLM) and tokenizer.mask_token_id is not None:
            places = (0, slice(MASKED_FROM, -1, MASKED_EVERY))
            hidden.append(inputs["input_ids"][places].clone())
            inputs["input_ids"][places] = tokenizer.mask_token_id
        found = run_session(session, inputs)
        for name, expected in run_model(model, inputs).items():
            expected = expected.cpu()
            difference = (found[name] - expected).abs()
            largest, total = max(largest, difference.max().item()), total + difference.sum().item()
            count += difference.numel()
            choices.append(expected[places].argmax(-1).flatten())
            int8_choices.append(found[name][places].argmax(-1).flatten())
    numbers = {"int8_max_difference": largest, "int8_mean_difference": total / count}
    chosen, int8_chosen = torch.cat(choices), torch.cat(int8_choices)
    if not isinstance(model, LinformerModel) and not is_regression(model):
        numbers["int8_agreement"] = share(chosen == int8_chosen)
    if hidden:
        tokens = torch.cat(hidden).cpu()
        numbers |= {"accuracy": share(chosen == tokens), "int8_accuracy": share(int8_chosen == tokens)}
    return numbers


def sample_inputs(
    model: LinformerPreTrainedModel, tokenizer: PreTrainedTokenizerBase, names: list[str], texts: list[str]
) -> Iterator[Inputs]:
    """Yield each text as an input of its own, or each two as the choices of one."""
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
    """Tell whether a model's outputs are numbers, among which the highest means nothing."""
    rates = isinstance(model, LinformerForSequenceClassification) and model.config.num_labels == 1
    return rates or model.config.problem_type == "regression"


def share(is_so: torch.Tensor) -> float:
    """Return the share of true entries, NaN where there are none."""
    return is_so.float().mean().item()


@torch.no_grad()
def measure_seconds(
    model: LinformerPreTrainedModel, sessions: dict[str, onnxruntime.InferenceSession], names: list[str]
) -> dict[str, float]:
    """Time one sequence of n tokens without padding, in torch as it stands and in onnxruntime.

    Args:
        model: The model, in evaluation mode.
        sessions: What was exported from it, by the name that its numbers get.
        names: Its inputs.

    Returns:
        `torch_seconds`, and `<name>_seconds` and `<name>_speedup` over torch for each session: medians of runs that
        take turns, after one run to warm up.
    """
    inputs = draw_inputs(model, names, 1, model.config.max_position_embeddings)
    runs: dict[str, Callable[[], Outputs]] = {"torch": lambda: run_model(model, inputs)}
    for name, session in sessions.items():
        runs[name] = lambda session=session: run_session(session, inputs)
    seconds = {name: [] for name in runs}
    for _ in range(1 + TIMED_RUNS):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: median(measured[1:]) for name, measured in seconds.items()}
    return {f"{name}_seconds": value for name, value in medians.items()} | {
        f"{name}_speedup": medians["torch"] / medians[name] for name in sessions
    }

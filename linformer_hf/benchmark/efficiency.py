"""What a Linformer costs, measured beside its dense twin and its peers: seconds and memory against n and k.

For each task and n there are two kinds of measurement. Memory is measured for each model in a process of its own,
where nothing else raises the peak. Seconds are measured for all models in turns, in one process: the ratio is taken
within each round and its median reported, so that a machine that slows down for a while slows both sides of it.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from transformers.utils import logging

from ..common.measurement import seconds_in_turns
from ..common.records import device_name, write_results
from ..configuration_linformer import LinformerConfig
from .baselines import DENSE, FIRST_WORD, HAVE_K, LABELLED_SHARE, PEERS, Contender, build, make_inputs, padding_mask
from .counting import crossing_length, predicted_speedup
from .isolation import Measurements, Record, peak_bytes, reason, saved_bytes
from .report import Row, crossing, growth, panels, row_numbers, speedup_panel, table


try:
    from ..common.figures import plot_efficiency
except ImportError:
    plot_efficiency = None


logger = logging.get_logger(__name__)

CELLS = "efficiency.json"
TASKS = ("inference", "training", "mlm")
DTYPES = ("float32", "bfloat16")
BASELINE = "roberta sdpa"
GIBIBYTE = 2**30
GRID = ("output_dir", "lengths", "projected_lengths", "tasks", "dense", "peers", "compare_up_to")


@dataclass
class EfficiencyArguments:
    """What is measured, and of which shape the models are."""

    output_dir: str = field(
        default="runs/efficiency",
        metadata={"help": "Where numbers and figures go. A run that was stopped goes on with what is there."},
    )
    lengths: list[int] = field(
        default_factory=lambda: [512, 2048, 8192],
        metadata={"help": "n: tokens of a sequence, and the model's longest."},
    )
    projected_lengths: list[int] = field(
        default_factory=lambda: [128], metadata={"help": "k of the Linformers; an n below k leaves it out."}
    )
    tasks: list[str] = field(
        default_factory=lambda: list(TASKS),
        metadata={
            "help": "inference: a forward pass of the encoder. training: forward and backward pass of the encoder. "
            "mlm: the same with each model's own head and loss, 15 %% of the tokens labelled. None has an optimizer."
        },
    )
    dense: list[str] = field(
        default_factory=lambda: list(DENSE), metadata={"help": "How the dense twin attends: sdpa, eager or both."}
    )
    peers: list[str] = field(default_factory=list, metadata={"help": f"Others to measure: {', '.join(PEERS)}."})
    compare_up_to: int | None = field(
        default=None, metadata={"help": "Longest n at which dense twin and peers are measured. By default every n."}
    )
    batch_tokens: int | None = field(
        default=None,
        metadata={"help": "Tokens of a batch, the same for each n. By default one sequence of the longest n."},
    )
    padded_share: float = field(
        default=0.0,
        metadata={"help": "Share of each batch that is padding behind shorter texts; the longest fills n."},
    )
    vocab_size: int = field(default=50265, metadata={"help": "Words."})
    hidden_size: int = field(default=768, metadata={"help": "Width."})
    num_hidden_layers: int = field(
        default=2, metadata={"help": "Layers; with few, long inputs take little time and the ratios stay."}
    )
    num_attention_heads: int = field(default=12, metadata={"help": "Heads."})
    intermediate_size: int | None = field(default=None, metadata={"help": "Width of the MLP. By default 4 times M."})
    projection_sharing: str = field(default="layerwise", metadata={"help": "none, headwise, key_value or layerwise."})
    projection_type: str = field(default="linear", metadata={"help": "linear, mean_pool, max_pool or conv."})
    dropout: float = field(
        default=0.0,
        metadata={"help": "Dropout in training. Above 0, RoBERTa loses its fused attention on a CPU."},
    )
    repeats: int = field(default=5, metadata={"help": "Rounds that are timed; medians are reported."})
    dtype: str = field(default="float32", metadata={"help": "float32 or bfloat16, of weights and activations."})
    device: str | None = field(default=None, metadata={"help": "cpu or cuda. By default a GPU where there is one."})
    threads: int | None = field(default=None, metadata={"help": "Threads of a CPU. By default torch's choice."})
    compile: bool = field(default=False, metadata={"help": "Compile each model with torch.compile first."})
    memory_limit_gib: float | None = field(
        default=None, metadata={"help": "Memory of each process, on a CPU. By default what the machine has free."}
    )


def measure_efficiency(arguments: EfficiencyArguments) -> dict[str, Any]:
    """Measure every cell of the grid, log the tables, and write numbers and figures.

    Every batch has the same number of tokens. A model that is missing or fails is reported as such.

    Args:
        arguments: The grid and the shape.

    Returns:
        The numbers of `results.json`, named as in `inference_n512_linformer_k128_speedup`. `speedup` is the number of
        times that a model is faster than RoBERTa with fused attention, `predicted` the same by multiplies, and
        `peak_share` its peak memory as a share of RoBERTa's.

    Raises:
        ValueError: If arguments do not fit together, or the folder holds something else.
    """
    arguments = settle(arguments)
    check(arguments)
    torch.set_num_threads(arguments.threads)  # here too, where the record names them
    measurements = Measurements(Path(arguments.output_dir) / CELLS, setting(arguments))
    rows = []
    for task in arguments.tasks:
        for num_tokens in arguments.lengths:
            rows += measure_together(arguments, task, num_tokens, measurements)
    numbers = {name: value for row in rows for name, value in row_numbers(row).items()}
    for task in arguments.tasks:
        of_task = [row for row in rows if row.task == task]
        logger.info(f"\n{heading(arguments, task)}\n\n{table(of_task)}\n")
        numbers |= report_findings(arguments, task, of_task)
        draw(arguments, task, of_task)
    about = {"setting": setting(arguments), "baseline": BASELINE}
    write_results(arguments.output_dir, numbers, (arguments,), about)
    return numbers


def settle(arguments: EfficiencyArguments) -> EfficiencyArguments:
    """Fill in what is left to this machine or follows from other arguments."""
    return replace(
        arguments,
        lengths=sorted(set(arguments.lengths)),
        batch_tokens=arguments.batch_tokens or max(arguments.lengths),
        intermediate_size=arguments.intermediate_size or 4 * arguments.hidden_size,
        device=arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        threads=arguments.threads or torch.get_num_threads(),
    )


def check(arguments: EfficiencyArguments) -> None:
    """Refuse what cannot be measured, before anything is.

    Raises:
        ValueError: With the argument, its value and the repair.
    """
    for name, given, allowed in (
        ("tasks", arguments.tasks, TASKS),
        ("dense", arguments.dense, DENSE),
        ("peers", arguments.peers, PEERS),
        ("dtype", [arguments.dtype], DTYPES),
    ):
        for value in given:
            if value not in allowed:
                raise ValueError(f"--{name} has {value!r}; it takes {', '.join(allowed)}.")
    for num_tokens in arguments.lengths:
        if num_tokens < 1 or arguments.batch_tokens % num_tokens:
            raise ValueError(
                f"--lengths has {num_tokens}, of which --batch_tokens = {arguments.batch_tokens} is no multiple. All "
                "n see the same number of tokens in a batch; take powers of two."
            )
        padding_mask(arguments.batch_tokens // num_tokens, num_tokens, arguments.padded_share)
        for contender in contenders(arguments, num_tokens):
            model_config(arguments, contender, num_tokens)
    if arguments.repeats < 1:
        raise ValueError(f"--repeats is {arguments.repeats}; time at least one round.")
    if arguments.vocab_size <= FIRST_WORD:
        raise ValueError(f"--vocab_size is {arguments.vocab_size}; take more words than {FIRST_WORD} special ones.")


def contenders(arguments: EfficiencyArguments, num_tokens: int) -> list[Contender]:
    """List the models of one n."""
    lengths = [length for length in arguments.projected_lengths if length <= num_tokens]
    found = [Contender("linformer", length) for length in lengths]
    if arguments.compare_up_to is None or num_tokens <= arguments.compare_up_to:
        found += [Contender(f"roberta {implementation}") for implementation in arguments.dense]
        for peer in arguments.peers:
            found += [Contender(peer, length) for length in lengths] if peer in HAVE_K else [Contender(peer)]
    return found


def model_config(arguments: EfficiencyArguments, contender: Contender, num_tokens: int) -> LinformerConfig:
    """Describe the shape of a model; one without a k gets n, which nothing reads."""
    return LinformerConfig(
        vocab_size=arguments.vocab_size,
        hidden_size=arguments.hidden_size,
        num_hidden_layers=arguments.num_hidden_layers,
        num_attention_heads=arguments.num_attention_heads,
        intermediate_size=arguments.intermediate_size,
        max_position_embeddings=num_tokens,
        projected_length=contender.projected_length or num_tokens,
        projection_sharing=arguments.projection_sharing,
        projection_type=arguments.projection_type,
        hidden_dropout_prob=arguments.dropout,
        attention_probs_dropout_prob=arguments.dropout,
        sparse_prediction=True,
    )


def setting(arguments: EfficiencyArguments) -> dict[str, Any]:
    """Return what decides a number beside its place in the grid."""
    shape = {name: value for name, value in asdict(arguments).items() if name not in GRID}
    return {**shape, "computer": device_name(), "torch": str(torch.__version__)}


def measure_together(
    arguments: EfficiencyArguments, task: str, num_tokens: int, measurements: Measurements
) -> list[Row]:
    """Measure all models at one n and task: the memory of each, then the seconds of those that got through."""
    limit = arguments.memory_limit_gib and int(arguments.memory_limit_gib * GIBIBYTE)
    memory = {}
    for contender in contenders(arguments, num_tokens):
        name = f"memory, {task}, n={num_tokens}, {contender}"
        what = (arguments, contender, task, num_tokens)
        memory[contender] = measurements.measure(name, measure_memory, *what, memory_limit=limit)
    able = [contender for contender, record in memory.items() if "failure" not in record]
    speed: Record = {}
    if able:
        name = f"seconds, {task}, n={num_tokens}, {', '.join(map(str, able))}"
        what = (arguments, able, task, num_tokens)
        speed = measurements.measure(name, measure_seconds, *what, memory_limit=limit)
    return make_rows(arguments, task, num_tokens, memory, speed)


def measure_memory(arguments: EfficiencyArguments, contender: Contender, task: str, num_tokens: int) -> Record:
    """Measure what a step adds to the loaded model: `peak_bytes`, and in training the `saved_bytes` among them."""
    device = prepare(arguments)
    model = load(arguments, contender, task, num_tokens, device)
    step, forward = make_step(arguments, model, task, num_tokens, device)
    if arguments.compile:
        step()  # the compiler's own memory is not the model's
    record = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "peak_bytes": peak_bytes(step, device),
    }
    if task != "inference" and not arguments.compile:  # what is compiled keeps things that hooks do not see
        record["saved_bytes"] = saved_bytes(model, forward)
    return record


def measure_seconds(arguments: EfficiencyArguments, together: list[Contender], task: str, num_tokens: int) -> Record:
    """Time models in turns: `seconds` of each round by model, and `failures`."""
    device = prepare(arguments)
    steps, failures = {}, {}
    for contender in together:
        try:
            model = load(arguments, contender, task, num_tokens, device)
            step, _ = make_step(arguments, model, task, num_tokens, device)
            step()  # what happens only once, compiling among it, is not timed
            steps[str(contender)] = step
        except Exception as error:
            failures[str(contender)] = reason(error)
        model = step = None  # a model that failed must not take the next one's memory
    return {"seconds": seconds_in_turns(steps, arguments.repeats, device), "failures": failures}


def prepare(arguments: EfficiencyArguments) -> torch.device:
    """Set up this process, and return the device to compute on."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    return torch.device(arguments.device)


def load(
    arguments: EfficiencyArguments, contender: Contender, task: str, num_tokens: int, device: torch.device
) -> nn.Module:
    """Build a model for a task."""
    config = model_config(arguments, contender, num_tokens)
    model = build(contender.name, config, with_head=task == "mlm").to(device, getattr(torch, arguments.dtype))
    model.train(task != "inference")
    if arguments.compile:
        model.compile()
    return model


def make_step(
    arguments: EfficiencyArguments, model: nn.Module, task: str, num_tokens: int, device: torch.device
) -> tuple[Callable[[], None], Callable[[], torch.Tensor]]:
    """Return what is measured, and the forward pass in it."""
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.batch_tokens // num_tokens, num_tokens)
    inputs = make_inputs(*shape, arguments.vocab_size, arguments.padded_share, task == "mlm", generator)
    forward = partial(model, **{name: tensor.to(device) for name, tensor in inputs.items()})
    # stands for what a head would send back
    gradient = torch.randn(*shape, arguments.hidden_size, generator=generator).to(
        device, getattr(torch, arguments.dtype)
    )

    def infer() -> None:
        with torch.inference_mode():
            forward()

    def train() -> None:
        outputs = forward()
        outputs.backward(None if task == "mlm" else gradient)
        model.zero_grad()

    return (infer if task == "inference" else train), forward


def make_rows(
    arguments: EfficiencyArguments, task: str, num_tokens: int, memory: dict[Contender, Record], speed: Record
) -> list[Row]:
    """Put together what was measured of each model, and set it against the baseline."""
    seconds = speed.get("seconds", {})
    baseline = seconds.get(BASELINE)
    baseline_peak = memory.get(Contender(BASELINE), {}).get("peak_bytes")
    rows = []
    for contender, record in memory.items():
        own = seconds.get(str(contender))
        peak = record.get("peak_bytes")
        failure = record.get("failure") or speed.get("failure") or speed.get("failures", {}).get(str(contender))
        rows.append(
            Row(
                task=task,
                num_tokens=num_tokens,
                model=str(contender),
                projected_length=contender.projected_length,
                parameters=record.get("parameters"),
                seconds=own and median(own),
                speedup=own and baseline and median(dense / mine for dense, mine in zip(baseline, own)),
                predicted=predict(arguments, contender, task, num_tokens),
                peak_bytes=peak,
                peak_share=peak / baseline_peak if peak is not None and baseline_peak else None,
                saved_bytes=record.get("saved_bytes"),
                failure=failure,
            )
        )
    return rows


def predict(arguments: EfficiencyArguments, contender: Contender, task: str, num_tokens: int) -> float | None:
    """Return the speedup that the multiplies promise a Linformer of ours; with padding they promise nothing."""
    if contender.name != "linformer" or arguments.padded_share:
        return None
    config = model_config(arguments, contender, num_tokens)
    return predicted_speedup(config, labelled_share=LABELLED_SHARE if task == "mlm" else None)


def heading(arguments: EfficiencyArguments, task: str) -> str:
    """Say what a table was measured on."""
    padding = f", {100 * arguments.padded_share:g} % of them padding" if arguments.padded_share else ""
    return (
        f"{task}: {arguments.num_hidden_layers} layers, {arguments.hidden_size} wide, {arguments.num_attention_heads} "
        f"heads, MLP {arguments.intermediate_size}; {arguments.batch_tokens} tokens in each batch{padding}; "
        f"{arguments.dtype}, dropout {arguments.dropout:g}; {arguments.device}, {device_name()}. Faster: than "
        f"{BASELINE}."
    )


def report_findings(arguments: EfficiencyArguments, task: str, rows: list[Row]) -> dict[str, float | None]:
    """Log and return where a Linformer overtakes the dense twin, and in inference how memory grows with n."""
    numbers: dict[str, float | None] = {}
    for length in arguments.projected_lengths:
        contender = Contender("linformer", length)
        own = [row for row in rows if row.model == str(contender)]
        speedups = [(row.num_tokens, row.speedup) for row in own if row.speedup]
        if speedups:
            numbers[f"{task}_crossing_k{length}"] = found = crossing(speedups)
            shortest, longest = speedups[0][0], speedups[-1][0]
            where = f"from n = {found:.0f} on" if found else f"nowhere up to n = {longest}"
            if found == shortest:
                where = f"at every n measured, {shortest} and up"
            config = model_config(arguments, contender, max(arguments.lengths))
            promised = None if arguments.padded_share else crossing_length(config)
            by_multiplies = "" if task == "mlm" or not promised else f"; by multiplies from n = {promised} on"
            logger.info(f"{task}, k = {length}: faster than {BASELINE} {where}{by_multiplies}.")
        peaks = [(row.num_tokens, row.peak_bytes * row.num_tokens) for row in own if row.peak_bytes]
        if task == "inference" and len(peaks) > 1:
            # batches have the same tokens, so that a sequence's share is in proportion to n times the batch's bytes
            numbers[f"{task}_memory_exponent_k{length}"] = exponent = growth(peaks)
            logger.info(f"{task}, k = {length}: peak memory of a sequence grows as n^{exponent:.2f}.")
    return numbers


def draw(arguments: EfficiencyArguments, task: str, rows: list[Row]) -> None:
    """Draw seconds and memory of a sequence against n, and speedups, measured and by multiplies."""
    if plot_efficiency is None:
        logger.info("Figures need matplotlib: pip install linformer_hf[plots]")
        return
    folder = Path(arguments.output_dir)
    if costs := panels(rows, arguments.batch_tokens):
        plot_efficiency(costs, folder / f"{task}_cost", BASELINE)
    if speedups := speedup_panel(rows, BASELINE):
        plot_efficiency({f"Times faster than {BASELINE}": speedups}, folder / f"{task}_speedup", BASELINE)

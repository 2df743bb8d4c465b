"""What a Linformer costs, measured beside its dense twin and other encoders: seconds and memory against n and k.

For each task and length there are two kinds of measurement. Memory is measured for each model in a process of its own,
where nothing else raises the peak. Seconds are measured for all models in turns, in one process: the ratio is taken
within each round and its median reported, so that a slow moment of the machine affects both sides of it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from ..common.options import SHARING_HELP, TYPE_HELP
from ..common.records import device_name, write_results
from ..configuration_linformer import LinformerConfig
from .baselines import DENSE, PEERS, PEERS_WITH_K, MeasuredModel
from .cases import TASKS, Case, measure_memory, measure_seconds
from .cells import Cells
from .inputs import FIRST_WORD, padding_mask
from .macs import crossing_length
from .summary import BASELINE, Row, cost_panels, crossing, growth, make_rows, row_numbers, speedup_lines, table


try:
    from .figures import plot_efficiency
except ImportError:
    plot_efficiency = None


logger = logging.get_logger(__name__)

CELLS = "efficiency.json"
DTYPES = ("float32", "bfloat16")
GIBIBYTE = 2**30
GRID = ("output_dir", "lengths", "projected_lengths", "tasks", "dense", "peers", "compare_up_to")


@dataclass
class EfficiencyArguments:
    """What is measured, and the shape of the models."""

    output_dir: str = field(
        default="runs/efficiency",
        metadata={"help": "Folder for numbers and figures. A run that was stopped continues with what is there."},
    )
    lengths: list[int] = field(
        default_factory=lambda: [512, 2048, 8192],
        metadata={"help": "Tokens of a sequence; also n of the models, unless --max_position_embeddings is given."},
    )
    max_position_embeddings: int | None = field(
        default=None,
        metadata={
            "help": "n of all models, which read --lengths up to it: what short texts cost with one model. By default "
            "a model for each length, with n equal to it."
        },
    )
    projected_lengths: list[int] = field(
        default_factory=lambda: [128], metadata={"help": "k of the Linformers; a k above n is left out."}
    )
    tasks: list[str] = field(
        default_factory=lambda: list(TASKS),
        metadata={
            "help": "inference: a forward pass of the encoder. training: forward and backward pass of the encoder. "
            "mlm: the same with each model's own head and loss, 15 %% of the tokens labelled. None has an optimizer."
        },
    )
    dense: list[str] = field(
        default_factory=lambda: list(DENSE),
        metadata={"help": "Attention implementations of the dense twin: sdpa, eager or both."},
    )
    peers: list[str] = field(
        default_factory=list, metadata={"help": f"Other encoders to measure: {', '.join(PEERS)}."}
    )
    compare_up_to: int | None = field(
        default=None,
        metadata={"help": "Longest length at which dense twin and peers are measured. By default every length."},
    )
    batch_tokens: int | None = field(
        default=None,
        metadata={"help": "Tokens of a batch, the same for each length. By default one sequence of the longest."},
    )
    batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Texts of a batch, the same for each length, in place of --batch_tokens; 1 is a single text."
        },
    )
    padded_share: float = field(
        default=0.0,
        metadata={"help": "Share of each batch that is padding behind shorter texts; the longest has none."},
    )
    vocab_size: int = field(default=50265, metadata={"help": "Number of words."})
    hidden_size: int = field(default=768, metadata={"help": "Width of the model."})
    num_hidden_layers: int = field(
        default=2,
        metadata={"help": "Number of layers. A few are enough for the ratios, and long inputs then take little time."},
    )
    num_attention_heads: int = field(default=12, metadata={"help": "Number of attention heads."})
    intermediate_size: int | None = field(
        default=None, metadata={"help": "Width of the MLP. By default 4 times --hidden_size."}
    )
    projection_sharing: str = field(default="layerwise", metadata={"help": SHARING_HELP})
    projection_type: str = field(default="linear", metadata={"help": TYPE_HELP})
    dropout: float = field(
        default=0.0,
        metadata={"help": "Dropout in training. Above 0, RoBERTa cannot use fused attention on a CPU."},
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
    """Measure every case of the grid, log the tables, and write numbers and figures.

    A model that is missing or fails is reported as such.

    Args:
        arguments: The grid and the shape.

    Returns:
        The numbers of `results.json`, named as in `inference_n512_linformer_k128_speedup`, where n is the length of
        the texts. `speedup` is how many times faster a model is than RoBERTa with fused attention, `predicted` the
        same by MACs, and `peak_share` its peak memory as a share of RoBERTa's.

    Raises:
        ValueError: If arguments do not fit together, or the folder holds something else.
    """
    check_choices(arguments.tasks, arguments.dense, arguments.peers, arguments.dtype)
    check_sizes(arguments.repeats, arguments.vocab_size)
    check_lengths(arguments.lengths, arguments.max_position_embeddings, arguments.batch_tokens, arguments.batch_size)
    arguments = fill_in(arguments)
    groups = make_cases(arguments)
    torch.set_num_threads(arguments.threads)  # in this process too, as the record names its threads
    folder = Path(arguments.output_dir)
    setting = get_setting(arguments)
    cells = Cells(folder / CELLS, setting)
    limit = None if arguments.memory_limit_gib is None else int(arguments.memory_limit_gib * GIBIBYTE)
    rows = [row for cases in groups for row in measure_group(cases, arguments.repeats, limit, cells)]

    numbers = {name: value for row in rows for name, value in row_numbers(row).items()}
    title = describe(arguments)
    longest = {case.model: case.config for cases in groups for case in cases}  # the last one is of the longest n
    for task in arguments.tasks:
        of_task = [row for row in rows if row.task == task]
        logger.info(f"\n{task}: {title}\n\n{table(of_task)}\n")
        for length in arguments.projected_lengths:
            config = longest.get(MeasuredModel("linformer", length))
            by_macs = None if config is None or arguments.padded_share or task == "mlm" else crossing_length(config)
            numbers |= report_crossing(task, length, of_task, by_macs)
            numbers |= report_growth(task, length, of_task) if task == "inference" else {}
        draw(task, of_task, folder)
    write_results(folder, numbers, (arguments,), {"setting": setting, "baseline": BASELINE})
    return numbers


def check_choices(tasks: list[str], dense: list[str], peers: list[str], dtype: str) -> None:
    """Check options that name one of a few choices.

    Raises:
        ValueError: With the option, its value and the choices.
    """
    for name, values, choices in (
        ("tasks", tasks, TASKS),
        ("dense", dense, DENSE),
        ("peers", peers, PEERS),
        ("dtype", [dtype], DTYPES),
    ):
        for value in values:
            if value not in choices:
                raise ValueError(f"--{name} has {value!r}; it takes {', '.join(choices)}.")


def check_sizes(repeats: int, vocab_size: int) -> None:
    """Check that there is something to time, and that there are words.

    Raises:
        ValueError: With the option and its value.
    """
    if repeats < 1:
        raise ValueError(f"--repeats is {repeats}; time at least one round.")
    if vocab_size <= FIRST_WORD:
        raise ValueError(f"--vocab_size is {vocab_size}; it must be more than {FIRST_WORD}, the special tokens.")


def check_lengths(
    lengths: list[int], max_position_embeddings: int | None, batch_tokens: int | None, batch_size: int | None
) -> None:
    """Check that the models can read the lengths, and that each fills a batch.

    Raises:
        ValueError: With the option and its value.
    """
    if batch_tokens is not None and batch_size is not None:
        raise ValueError(f"--batch_tokens is {batch_tokens} and --batch_size {batch_size}; give one of the two.")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"--batch_size is {batch_size}; it must be at least 1.")
    batch_tokens = batch_tokens or max(lengths)
    for length in lengths:
        if length < 1:
            raise ValueError(f"--lengths has {length}; it must be at least 1.")
        if max_position_embeddings is not None and length > max_position_embeddings:
            raise ValueError(f"--lengths has {length}, more than --max_position_embeddings {max_position_embeddings}.")
        if batch_size is None and batch_tokens % length:
            raise ValueError(
                f"--lengths has {length}, and --batch_tokens, {batch_tokens}, is not a multiple of it; take powers of "
                "two, or --batch_size."
            )


def fill_in(arguments: EfficiencyArguments) -> EfficiencyArguments:
    """Replace defaults that depend on this machine or on other arguments by their values."""
    default_tokens = max(arguments.lengths) if arguments.batch_size is None else None
    return replace(
        arguments,
        lengths=sorted(set(arguments.lengths)),
        batch_tokens=arguments.batch_tokens or default_tokens,
        intermediate_size=arguments.intermediate_size or 4 * arguments.hidden_size,
        device=arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        threads=arguments.threads or torch.get_num_threads(),
    )


def make_cases(arguments: EfficiencyArguments) -> list[list[Case]]:
    """List the cases of the grid, those that are timed together in one list.

    Raises:
        ValueError: If a configuration is wrong, or the padding does not fit into a batch.
    """
    groups = []
    for task in arguments.tasks:
        for length in arguments.lengths:
            batch_size = arguments.batch_size or arguments.batch_tokens // length
            padding_mask(
                batch_size, length, arguments.padded_share
            )  # refuses what does not fit, before any is measured
            longest = arguments.max_position_embeddings or length
            is_compared = arguments.compare_up_to is None or length <= arguments.compare_up_to
            models = list_models(
                [k for k in arguments.projected_lengths if k <= longest],
                arguments.dense if is_compared else [],
                arguments.peers if is_compared else [],
            )
            groups.append(
                [
                    Case(
                        model=model,
                        config=model_config(arguments, longest, model.projected_length),
                        task=task,
                        num_tokens=length,
                        batch_size=batch_size,
                        padded_share=arguments.padded_share,
                        dtype=arguments.dtype,
                        device=arguments.device,
                        threads=arguments.threads,
                        compiled=arguments.compile,
                    )
                    for model in models
                ]
            )
    return groups


def list_models(projected_lengths: list[int], dense: list[str], peers: list[str]) -> list[MeasuredModel]:
    """List the models of one length."""
    models = [MeasuredModel("linformer", length) for length in projected_lengths]
    models += [MeasuredModel(f"roberta {implementation}") for implementation in dense]
    for peer in peers:
        if peer in PEERS_WITH_K:
            models += [MeasuredModel(peer, length) for length in projected_lengths]
        else:
            models.append(MeasuredModel(peer))
    return models


def model_config(arguments: EfficiencyArguments, longest: int, projected_length: int | None) -> LinformerConfig:
    """Describe the shape of a model; the k of one that has none is n, and is not read."""
    return LinformerConfig(
        vocab_size=arguments.vocab_size,
        hidden_size=arguments.hidden_size,
        num_hidden_layers=arguments.num_hidden_layers,
        num_attention_heads=arguments.num_attention_heads,
        intermediate_size=arguments.intermediate_size,
        max_position_embeddings=longest,
        projected_length=projected_length or longest,
        projection_sharing=arguments.projection_sharing,
        projection_type=arguments.projection_type,
        hidden_dropout_prob=arguments.dropout,
        attention_probs_dropout_prob=arguments.dropout,
        sparse_prediction=True,
    )


def get_setting(arguments: EfficiencyArguments) -> dict[str, Any]:
    """Return what a number depends on beside its place in the grid."""
    shape = {name: value for name, value in asdict(arguments).items() if name not in GRID}
    return {**shape, "computer": device_name(), "torch": str(torch.__version__)}


def measure_group(cases: Sequence[Case], rounds: int, memory_limit: int | None, cells: Cells) -> list[Row]:
    """Measure models at one task and length: the memory of each, then the seconds of those that did not fail."""
    memory = [
        cells.measure(
            f"memory, {case.task}, n={case.num_tokens}, {case.model}", measure_memory, case, memory_limit=memory_limit
        )
        for case in cases
    ]
    working = [case for case, record in zip(cases, memory) if "failure" not in record]
    if not working:
        return make_rows(cases, memory, {})
    models = ", ".join(str(case.model) for case in working)
    name = f"seconds, {cases[0].task}, n={cases[0].num_tokens}, {models}"
    speed = cells.measure(name, measure_seconds, working, rounds, memory_limit=memory_limit)
    return make_rows(cases, memory, speed)


def describe(arguments: EfficiencyArguments) -> str:
    """Say what a table was measured on."""
    if arguments.batch_size is None:
        batch = f"{arguments.batch_tokens} tokens in each batch"
    else:
        batch = f"{arguments.batch_size} texts in each batch"
    longest = f"; n = {arguments.max_position_embeddings}" if arguments.max_position_embeddings else ""
    padding = f", {100 * arguments.padded_share:g} % of them padding" if arguments.padded_share else ""
    return (
        f"{arguments.num_hidden_layers} layers, {arguments.hidden_size} wide, {arguments.num_attention_heads} heads, "
        f"MLP {arguments.intermediate_size}{longest}; {batch}{padding}; {arguments.dtype}, dropout "
        f"{arguments.dropout:g}; {arguments.device}, {device_name()}. Faster: than {BASELINE}."
    )


def report_crossing(
    task: str, projected_length: int, rows: Sequence[Row], by_macs: int | None
) -> dict[str, float | None]:
    """Log and return from which length on a Linformer is faster than the baseline.

    Args:
        task: The task.
        projected_length: k of the Linformer.
        rows: The rows of the task.
        by_macs: The same length by MACs, for the model of the longest n; None where it is unknown.
    """
    model = str(MeasuredModel("linformer", projected_length))
    speedups = [(row.num_tokens, row.speedup) for row in rows if row.model == model and row.speedup]
    if not speedups:
        return {}
    found = crossing(speedups)
    shortest, longest = speedups[0][0], speedups[-1][0]
    if found is None:
        where = f"not faster than {BASELINE} at {longest} tokens"
    elif found == shortest:
        where = f"faster than {BASELINE} at every length measured, from {shortest} tokens on"
    else:
        where = f"faster than {BASELINE} from about {found:.0f} tokens on"
    note = "" if by_macs is None else f"; by MACs from {by_macs} on"
    logger.info(f"{task}, k = {projected_length}: {where}{note}.")
    return {f"{task}_crossing_k{projected_length}": found}


def report_growth(task: str, projected_length: int, rows: Sequence[Row]) -> dict[str, float]:
    """Log and return the power of the length with which the peak memory of a sequence grows."""
    model = str(MeasuredModel("linformer", projected_length))
    peaks = [
        (row.num_tokens, row.peak_bytes / row.batch_size) for row in rows if row.model == model and row.peak_bytes
    ]
    if len(peaks) < 2:
        return {}
    exponent = growth(peaks)
    logger.info(f"{task}, k = {projected_length}: peak memory of a sequence grows as n^{exponent:.2f}.")
    return {f"{task}_memory_exponent_k{projected_length}": exponent}


def draw(task: str, rows: Sequence[Row], folder: Path) -> None:
    """Draw seconds and memory of a sequence against its length, and speedups, measured and by MACs."""
    if plot_efficiency is None:
        logger.info("Figures need matplotlib: pip install linformer_hf[plots]")
        return
    if costs := cost_panels(rows):
        plot_efficiency(costs, folder / f"{task}_cost", BASELINE)
    if speedups := speedup_lines(rows):
        plot_efficiency({f"Times faster than {BASELINE}": speedups}, folder / f"{task}_speedup", BASELINE)

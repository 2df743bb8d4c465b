"""A dense encoder becomes a Linformer: every weight by its name, the length as asked, the projections from a start."""

import json
import shlex
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch.nn import functional as F
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..analysis.singular_values import recommend
from ..common.heads import HEADS, head_named, head_of_class
from ..common.loading import check_tokenizer, model_length
from ..common.records import Stopwatch, check_new_folder, model_facts, whole_or_nothing, write_results
from ..configuration_linformer import LinformerConfig
from ..modeling_linformer import LinformerPreTrainedModel
from ..sharing.hub import export
from .families import FAMILIES, check_convertible, dense_head, module_names, our_class, translate_config
from .projections import PROJECTION_STARTS, start_projections


logger = logging.get_logger(__name__)

REPORT = "conversion.json"
POSITION_GROWTHS = ("tile", "interpolate")


@dataclass
class ConversionArguments:
    """Which dense encoder becomes which Linformer."""

    model_name_or_path: str = field(
        metadata={"help": "The dense encoder, on the Hub or in a folder: BERT, RoBERTa, XLM-R, DistilBERT, ELECTRA, …"}
    )
    output_dir: str = field(metadata={"help": "Where the Linformer goes; a new or empty folder."})
    head: str | None = field(
        default=None,
        metadata={
            "help": f"Which head it gets: {', '.join(head.name for head in HEADS)}. By default that of the checkpoint."
        },
    )
    max_seq_length: int | None = field(
        default=None, metadata={"help": "n, the longest input in tokens. By default the dense encoder's own."}
    )
    projected_length: list[int] | None = field(
        default=None, metadata={"help": "k, the slots: one number, or one for each layer. By default 128."}
    )
    spectrum_file: str | None = field(
        default=None,
        metadata={"help": "The spectrum.json of scripts/analyze_spectrum.py for this encoder, which --energy reads."},
    )
    energy: float | None = field(
        default=None,
        metadata={
            "help": "In place of --projected_length: in each layer the fewest slots, in eights, with which maps of "
            "that rank can keep this share of the energy, as 0.95; where layers share a matrix, the most of these."
        },
    )
    projection_sharing: str = field(
        default="layerwise", metadata={"help": "Who shares a projection: none, headwise, key_value or layerwise."}
    )
    projection_type: str = field(
        default="linear", metadata={"help": "How tokens become slots: linear, mean_pool, max_pool or conv."}
    )
    projection_start: str = field(
        default="leading",
        metadata={
            "help": "Where projections start. leading: the first k tokens have a slot each, later ones join lightly; "
            "window: each slot averages n / k tokens; folded: as in a model from scratch."
        },
    )
    position_growth: str = field(
        default="tile",
        metadata={"help": "Where a longer position table comes from: tile repeats the rows, interpolate stretches."},
    )
    model_revision: str = field(
        default="main", metadata={"help": "Which branch, tag or commit of the dense encoder to load."}
    )


@dataclass
class ConversionReport:
    """What became of each tensor, by name.

    Args:
        copied: Dense tensors and where each went.
        left_out: Dense tensors that a Linformer has no place for.
        new: Tensors of the Linformer that no dense one gave, and where they start.
        notes: What was changed on the way, in sentences.
    """

    copied: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    new: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Say it in lines to read; of what was copied only how much."""
        return [
            f"{len(self.copied)} tensors copied.",
            *self.notes,
            *(f"new: {name} ({start})" for name, start in self.new.items()),
            *(f"left out: {name}" for name in self.left_out),
        ]


def convert_model(
    dense: PreTrainedModel,
    max_position_embeddings: int | None = None,
    projected_length: int | list[int] = 128,
    projection_sharing: str = "layerwise",
    projection_type: str = "linear",
    projection_start: str = "leading",
    position_growth: str = "tile",
    fresh: Collection[str] = (),
) -> tuple[LinformerPreTrainedModel, ConversionReport]:
    """Make a Linformer with the weights of a dense encoder, and with its head where a Linformer has it.

    With k = n and no padding it computes what the dense model does. Head, labels, dropouts, tying, dtype and device
    are kept; the dense model stays as it is.

    Args:
        dense: A BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT or ELECTRA.
        max_position_embeddings: n in tokens; None takes the dense model's longest input.
        projected_length: k, for all layers or one a layer.
        projection_sharing: As in `LinformerConfig`.
        projection_type: As in `LinformerConfig`.
        projection_start: As in `projections.start_matrix`.
        position_growth: Where rows beyond the dense model's come from: `"tile"` repeats its table, `"interpolate"`
            stretches it.
        fresh: Dense tensors that hold nothing learned, which the report then calls new.

    Returns:
        The Linformer, in evaluation mode, and what became of each tensor.

    Raises:
        ValueError: If the dense model is of another kind, or the numbers do not fit; the message gives the reason.
    """
    check_convertible(dense.config, type(dense).__name__)
    for name, value, allowed in (
        ("projection_start", projection_start, PROJECTION_STARTS),
        ("position_growth", position_growth, POSITION_GROWTHS),
    ):
        if value not in allowed:
            raise ValueError(f"`{name}` is {value!r}; it must be one of {', '.join(allowed)}.")
    head = dense_head(type(dense).__name__, FAMILIES[dense.config.model_type])
    token_types = getattr(dense.base_model.embeddings, "token_type_embeddings", None)
    config = translate_config(
        dense.config,
        head,
        vocab_size=dense.get_input_embeddings().num_embeddings,
        type_vocab_size=1 if token_types is None else token_types.num_embeddings,
        max_position_embeddings=model_length(dense) if max_position_embeddings is None else max_position_embeddings,
        projected_length=projected_length,
        projection_sharing=projection_sharing,
        projection_type=projection_type,
    )
    model = our_class(head)(config).to(device=dense.device, dtype=dense.dtype).eval()
    start_projections(model, projection_start)
    report = move_weights(dense, model, position_growth, fresh)
    filled = {*report.copied.values(), *report.new}
    for name in (name for name in model.state_dict() if name not in filled):
        report.new[name] = describe_projection(model.get_parameter(name), config, projection_start)
    return model, report


@torch.no_grad()
def move_weights(
    dense: PreTrainedModel, model: LinformerPreTrainedModel, position_growth: str, fresh: Collection[str]
) -> ConversionReport:
    """Copy every weight that both models have; token types that the dense model has not are zeros.

    Returns:
        The report, in which only the projections are still missing.
    """
    report, names, ours = ConversionReport(), module_names(dense), model.state_dict()
    for name, tensor in dense.state_dict().items():
        module, _, parameter = name.rpartition(".")
        if module not in names:
            report.left_out += [] if name in fresh else [name]
            continue
        target = f"{names[module]}.{parameter}"
        if target.endswith("position_embeddings.weight"):
            learned = tensor[-model_length(dense) :]
            tensor = fit_positions(learned, len(ours[target]), position_growth)
            if len(tensor) != len(learned):
                how = position_growth if len(tensor) > len(learned) else "cut"
                report.notes.append(f"Positions: {len(learned)} learned, {len(tensor)} now ({how}).")
        ours[target].copy_(tensor)
        if name in fresh:
            report.new[target] = "drawn, the checkpoint has none"
        else:
            report.copied[name] = target
    for name in (name for name in ours if name.endswith("token_type_embeddings.weight")):
        if name not in report.copied.values():
            ours[name].zero_()
            report.new[name] = "zeros, the dense model has no token types"
    return report


def fit_positions(rows: torch.Tensor, length: int, growth: str) -> torch.Tensor:
    """Cut or grow a position table, `(rows, M)`, to a length, as `convert_model` says."""
    if length <= len(rows) or growth == "tile":
        return rows[torch.arange(length, device=rows.device) % len(rows)]
    return F.interpolate(rows.T[None].float(), size=length, mode="linear", align_corners=True)[0].T


def describe_projection(weight: torch.Tensor, config: LinformerConfig, start: str) -> str:
    """Say in a word where a projection starts."""
    if config.projection_type == "conv":
        return "mean"
    return "identity" if weight.shape[-2] == weight.shape[-1] else start


def convert_checkpoint(arguments: ConversionArguments) -> ConversionReport:
    """Convert a saved dense encoder into a folder that loads anywhere, with tokenizer, card and report.

    Args:
        arguments: What is converted, into what, and where to.

    Returns:
        What became of each tensor, also in `conversion.json`.

    Raises:
        ValueError: If the encoder cannot be converted or loaded whole, or the folder is not empty. Nothing is written
            then.
    """
    watch = Stopwatch()
    folder = check_new_folder(arguments.output_dir)
    lengths = choose_lengths(arguments)
    dense, loading = load_dense(arguments)
    model, report = convert_model(
        dense,
        max_position_embeddings=arguments.max_seq_length,
        projected_length=lengths[0] if len(lengths) == 1 else lengths,
        projection_sharing=arguments.projection_sharing,
        projection_type=arguments.projection_type,
        projection_start=arguments.projection_start,
        position_growth=arguments.position_growth,
        fresh=loading["missing_keys"],
    )
    report.left_out += sorted(loading["unexpected_keys"])
    if arguments.energy is not None:
        report.notes.append(f"Slots: {lengths}, for {100 * arguments.energy:g} % of the energy of each layer's maps.")
    tokenizer = load_tokenizer(arguments, model)

    numbers = {"tensors_copied": len(report.copied), "tensors_new": len(report.new), **watch.read()}
    numbers["tensors_left_out"] = len(report.left_out)
    with whole_or_nothing(folder):
        write_results(folder, numbers, (arguments,), about(arguments, model))
        (folder / REPORT).write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
        export(model, tokenizer, folder)
    for line in report.lines():
        logger.info(line)
    logger.info(f"Saved in {folder}. Slots lose something until the model has learned to use them; next:")
    logger.info(next_command(arguments))
    return report


def choose_lengths(arguments: ConversionArguments) -> list[int]:
    """Return k as it was given, or the one that a spectrum asks for.

    Raises:
        ValueError: If k is asked for in two ways or by half, the file is no spectrum, or it says nothing of this
            Linformer.
    """
    file, energy = arguments.spectrum_file, arguments.energy
    if file is None and energy is None:
        return arguments.projected_length or [128]
    if energy is not None and not 0 < energy <= 1:
        raise ValueError(f"--energy is {energy}; it must be above 0 and at most 1.")
    if file is None or energy is None:
        raise ValueError("--spectrum_file and --energy choose k together; give both, or --projected_length.")
    if arguments.projected_length is not None:
        raise ValueError("k is given twice, by --projected_length and by --energy; give one of them.")
    if arguments.projection_type != "linear":
        raise ValueError(
            f"--energy chooses the rank of a matrix; --projection_type {arguments.projection_type} has none."
        )
    try:
        spectrum = json.loads(Path(file).read_text(encoding="utf-8"))
        shares, longest = torch.tensor(spectrum["energy"], dtype=torch.float64), spectrum["longest_text"]
        lengths = recommend(shares, energy)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"{file} is no spectrum to choose from ({error}); scripts/analyze_spectrum.py writes one."
        ) from error
    if (arguments.max_seq_length or longest) > longest:
        raise ValueError(
            f"{file} is of texts of {longest} tokens, and --max_seq_length is {arguments.max_seq_length}, which may "
            "need more slots: give --projected_length."
        )
    # layers that share a matrix read its first rows, and fewer of them would be the beginning of a text
    return [max(lengths)] if arguments.projection_sharing == "layerwise" else lengths


def load_dense(arguments: ConversionArguments) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a dense encoder with the head that is asked for, or its own.

    Returns:
        The model, and the host's account of the loading.

    Raises:
        ValueError: If it cannot be converted, or its weights are not whole.
    """
    name, revision = arguments.model_name_or_path, arguments.model_revision
    config = AutoConfig.from_pretrained(name, revision=revision)
    class_name = class_to_load(config, arguments.head)
    check_convertible(config, class_name)
    try:
        dense, loading = getattr(transformers, class_name).from_pretrained(
            name, config=config, revision=revision, output_loading_info=True
        )
    except SafetensorError as error:
        raise ValueError(f"The weights of {name} are damaged: {error}.") from error
    body = {tensor for tensor in loading["missing_keys"] if is_of_body(tensor, dense)}
    if body:
        raise ValueError(f"The weights of {name} lack {len(body)} tensors of the encoder, as {min(body)}.")
    return dense, loading


def class_to_load(config: PreTrainedConfig, head: str | None) -> str:
    """Name the dense class that has a head, or that a checkpoint was saved from.

    Raises:
        ValueError: If there is no such head.
    """
    if head is None:
        saved = (config.architectures or [""])[0]
        if hasattr(transformers, saved):
            return saved
        head = "none"
    mapping = head_named(head).auto_class._model_mapping
    return mapping[type(config)].__name__ if type(config) in mapping else "PreTrainedModel"


def is_of_body(tensor: str, dense: PreTrainedModel) -> bool:
    """Tell whether a tensor belongs to the encoder proper; a pooler does not."""
    module = tensor.rpartition(".")[0]
    return ".layers." in f".{module_names(dense).get(module, '')}" or ".embeddings." in f".{module}"


def load_tokenizer(arguments: ConversionArguments, model: LinformerPreTrainedModel) -> PreTrainedTokenizerBase:
    """Load the dense encoder's tokenizer, for texts of n tokens; without token types where the model has but one.

    Raises:
        ValueError: If there is none, or the model has no embedding for some of its tokens.
    """
    name = arguments.model_name_or_path
    tokenizer = AutoTokenizer.from_pretrained(name, revision=arguments.model_revision)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # the host makes an empty one where it finds none
        raise ValueError(f"{name} has no tokenizer; save it there with `tokenizer.save_pretrained`.")
    check_tokenizer(tokenizer, model, name)
    tokenizer.model_max_length = model.config.max_position_embeddings
    if model.config.type_vocab_size == 1:
        names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        # the host saves what the tokenizer was made with, not what it became
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
    return tokenizer


def about(arguments: ConversionArguments, model: LinformerPreTrainedModel) -> dict[str, Any]:
    """Say what the card tells of the conversion."""
    name = arguments.model_name_or_path
    return {
        "pipeline_tag": head_of_class(type(model).__name__).pipeline_tag,
        "dataset": f"none, the weights are those of {Path(name).name}",
        "base_model": None if Path(name).is_dir() else name,
        "model": model_facts(model),
    }


def next_command(arguments: ConversionArguments) -> str:
    """Return the command that teaches the converted model what the dense one knows."""
    return shlex.join(
        ["python", "scripts/distill.py", "--do_train", "--do_eval"]
        + ["--model_name_or_path", arguments.output_dir, "--teacher_name_or_path", arguments.model_name_or_path]
        + ["--output_dir", f"{arguments.output_dir.rstrip('/')}-taught"]
    )

"""Convert a saved dense encoder into a folder, with tokenizer, card and the other files of its parent."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..common.files import check_new_folder, whole_or_nothing
from ..common.heads import HEADS, head_named, head_of_class
from ..common.loading import check_tokenizer, load_config, load_whole, model_length
from ..common.measurement import Stopwatch
from ..common.options import SHARING_HELP, TYPE_HELP
from ..common.records import model_facts, write_results
from ..modeling_linformer import LinformerModel, LinformerPreTrainedModel
from ..sharing.hub import save_for_hub
from .companion_files import about_parent, carry_over, left_behind, local_folder, longest_text
from .convert import ConversionReport, convert_model
from .embeddings import MEAN, POOLING_SETTINGS, read_modules, read_poolings
from .families import check_convertible
from .slot_choice import check_choice, choose_lengths


logger = logging.get_logger(__name__)

REPORT = "conversion.json"


@dataclass
class ConversionArguments:
    """Options of a conversion."""

    model_name_or_path: str = field(
        metadata={
            "help": "The dense encoder (BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA), a folder or on the Hub."
        }
    )
    output_dir: str = field(metadata={"help": "The folder of the Linformer; new or empty."})
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
        default=None,
        metadata={
            "help": "k, the slots: a number, or several, of which the last holds for all further layers. By "
            "default 128."
        },
    )
    spectrum_file: str | None = field(
        default=None,
        metadata={"help": "The spectrum.json that `linformer spectrum` wrote for this encoder; --energy reads it."},
    )
    energy: float | None = field(
        default=None,
        metadata={
            "help": "Instead of --projected_length: each layer gets the smallest k, rounded up to a multiple of 8, "
            "with which attention maps of that rank keep this share of their energy, as 0.95; layers that share a "
            "matrix get the largest of these."
        },
    )
    projection_sharing: str = field(default="layerwise", metadata={"help": SHARING_HELP})
    projection_type: str = field(default="linear", metadata={"help": TYPE_HELP})
    projection_start: str = field(
        default="leading",
        metadata={
            "help": "How projections start. leading, for texts of up to k tokens: each of the first k tokens "
            "has a slot, to which later tokens are added with a small weight; graded, for texts of all lengths: each "
            "of the first k / 2 tokens has a slot, and the others average the tokens behind them; window, for texts "
            "that fill n: the first and the last token have a slot each, and the others average the tokens between; "
            "folded: token j goes to slot j mod k."
        },
    )
    position_growth: str = field(
        default="tile",
        metadata={"help": "How a longer position table is made: tile repeats its rows, interpolate stretches it."},
    )
    model_revision: str = field(
        default="main", metadata={"help": "Which branch, tag or commit of the dense encoder to load."}
    )
    token: str | None = field(
        default=None,
        metadata={"help": "Access token of the Hub. By default HF_TOKEN, or that of `hf auth login`."},
    )


def convert_pretrained(
    model_name_or_path: str,
    output_dir: str | Path,
    head: str | None = None,
    max_seq_length: int | None = None,
    projected_length: int | list[int] = 128,
    projection_sharing: str = "layerwise",
    projection_type: str = "linear",
    projection_start: str = "leading",
    position_growth: str = "tile",
    model_revision: str = "main",
    token: str | None = None,
) -> ConversionReport:
    """Convert a dense encoder, by name, into a folder that loads as its parent does.

    Besides weights, configuration and tokenizer the folder holds a card with license and origin and, of a sentence
    encoder, pooling, normalization and prompts, so that `SentenceTransformer(output_dir)` loads it.

    Args:
        model_name_or_path: On the Hub or in a folder.
        output_dir: A new or empty folder.
        head: Which head it gets, as in `common.heads`; None means that of the checkpoint.
        max_seq_length: n, the longest input in tokens; None means the dense encoder's own.
        projected_length: k: a number, or several, of which the last holds for all further layers.
        projection_sharing: As in `LinformerConfig`.
        projection_type: As in `LinformerConfig`.
        projection_start: As in `convert_model`.
        position_growth: As in `convert_model`.
        model_revision: Branch, tag or commit on the Hub.
        token: Access token of the Hub.

    Returns:
        Which tensors were copied, also in `conversion.json`.

    Raises:
        ValueError: As `convert_checkpoint` does.
    """
    return convert_checkpoint(
        ConversionArguments(
            model_name_or_path=model_name_or_path,
            output_dir=str(output_dir),
            head=head,
            max_seq_length=max_seq_length,
            projected_length=[projected_length] if isinstance(projected_length, int) else projected_length,
            projection_sharing=projection_sharing,
            projection_type=projection_type,
            projection_start=projection_start,
            position_growth=position_growth,
            model_revision=model_revision,
            token=token,
        )
    )


def convert_checkpoint(arguments: ConversionArguments) -> ConversionReport:
    """Convert a saved dense encoder into a folder that loads anywhere, with tokenizer, card and report.

    Args:
        arguments: What is converted, into what, and where to.

    Returns:
        Which tensors were copied, also in `conversion.json`.

    Raises:
        ValueError: If the encoder cannot be converted, its weights are damaged or incomplete, its folder lists a step
            that is not supported, or the output folder is not empty. Nothing is written then.
    """
    watch = Stopwatch()
    name, folder = arguments.model_name_or_path, check_new_folder(arguments.output_dir)
    check_choice(arguments.projected_length, arguments.spectrum_file, arguments.energy, arguments.projection_type)
    source = local_folder(name, arguments.model_revision, arguments.token)
    modules = [] if source is None else read_modules(source)
    loading = {
        "revision": arguments.model_revision,
        "token": arguments.token,
        "subfolder": modules[0].path if modules else "",  # of old sentence encoders
    }
    dense, account = load_dense(name, arguments.head, loading)
    lengths = choose_lengths(
        arguments.projected_length,
        arguments.spectrum_file,
        arguments.energy,
        arguments.max_seq_length or model_length(dense),
        dense.config.num_hidden_layers,
        arguments.projection_sharing,
    )
    model, report = convert_model(
        dense,
        max_position_embeddings=arguments.max_seq_length,
        projected_length=lengths[0] if len(lengths) == 1 else lengths,
        projection_sharing=arguments.projection_sharing,
        projection_type=arguments.projection_type,
        projection_start=arguments.projection_start,
        position_growth=arguments.position_growth,
        fresh=account["missing_keys"],
    )
    report.left_out += sorted(account["unexpected_keys"])
    if arguments.energy is not None:
        report.notes.append(f"Slots: {lengths}, for {100 * arguments.energy:g} % of the energy of each layer's maps.")
    if modules and isinstance(model, LinformerModel):
        take_pooling(model, read_poolings(source / modules[1].path / POOLING_SETTINGS), report)
    tokenizer = adapted_tokenizer(name, loading, model)
    with whole_or_nothing(folder):
        if source is not None:
            report.notes += carry_companions(source, folder, arguments.max_seq_length)
        about = {
            "pipeline_tag": head_of_class(type(model).__name__).pipeline_tag,
            "dataset": f"none, the weights are those of {Path(name).name}",
            **about_parent(name, source),
            "model": model_facts(model),
        }
        numbers = {
            "tensors_copied": len(report.copied),
            "tensors_new": len(report.new),
            "tensors_left_out": len(report.left_out),
            **watch.read(),
        }
        write_results(folder, numbers, (arguments,), about)
        (folder / REPORT).write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
        save_for_hub(model, tokenizer, folder)
    for line in report.lines():
        logger.info(line)
    logger.info(f"Saved in {folder}. Its outputs differ from the parent's until it was taught; next:")
    logger.info(next_command(name, folder))
    return report


def take_pooling(model: LinformerModel, poolings: tuple[str, ...], report: ConversionReport) -> None:
    """Let classifiers that start from a sentence encoder pool as its embedding does, where they can."""
    if poolings == (MEAN,):
        model.config.classifier_pooling = "mean"
        report.notes.append("Classifiers that start from it pool by the mean over tokens, as its embedding does.")


def carry_companions(source: Path, target: Path, max_seq_length: int | None) -> list[str]:
    """Copy the files beside the weights, and return sentences that name those that were copied or left behind."""
    copied = carry_over(source, target, max_seq_length)
    notes = [f"Carried over: {', '.join(copied)}."] if copied else []
    longest = longest_text(source) if copied else None
    if longest is not None and max_seq_length is None:
        notes.append(
            f"Sentence Transformers cuts texts after {longest} tokens, as of the parent; see --max_seq_length."
        )
    behind = left_behind(source)
    return [*notes, f"Left behind: {', '.join(behind)}."] if behind else notes


def load_dense(name: str, head: str | None, loading: Mapping[str, Any]) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a dense encoder with the head that is asked for, or with its own.

    Args:
        name: On the Hub or in a folder.
        head: As in `common.heads`; None means that of the checkpoint.
        loading: Further arguments of `from_pretrained`.

    Returns:
        The model, and Transformers' account of the loading.

    Raises:
        ValueError: If it cannot be converted, or its weights are damaged or incomplete.
    """
    config = load_config(name, **loading)
    class_name = class_to_load(config, head)
    check_convertible(config, class_name)
    return load_whole(getattr(transformers, class_name), name, may_lack_head=True, config=config, **loading)


def class_to_load(config: PreTrainedConfig, head: str | None) -> str:
    """Name the dense class that has a head, or that a checkpoint was saved from.

    Raises:
        ValueError: If there is no such head.
    """
    if head is None:
        saved = (config.architectures or [""])[0]
        saved_class = getattr(transformers, saved, None)
        if isinstance(saved_class, type) and issubclass(saved_class, PreTrainedModel):
            return saved
        head = "none"
    mapping = head_named(head).auto_class._model_mapping
    return mapping[type(config)].__name__ if type(config) in mapping else "PreTrainedModel"


def adapted_tokenizer(
    name: str, loading: Mapping[str, Any], model: LinformerPreTrainedModel
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model's parent for texts of n tokens, without token types where the model has only one.

    Args:
        name: On the Hub or in a folder.
        loading: Further arguments of `from_pretrained`.
        model: The Linformer.

    Raises:
        ValueError: If there is none, or the model has no embedding for some of its tokens.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **loading)
    except (ValueError, ImportError, KeyError, TypeError) as error:
        raise ValueError(f"The tokenizer of {name} does not load: {str(error).strip().splitlines()[0]}") from error
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # made where there are no files of one
        raise ValueError(f"{name} has no tokenizer; save it there with `tokenizer.save_pretrained`.")
    check_tokenizer(tokenizer, model, name)
    tokenizer.model_max_length = model.config.max_position_embeddings
    if model.config.type_vocab_size == 1:
        names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        # Transformers saves the arguments that the tokenizer was made with, not its attributes
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
    return tokenizer


def next_command(name: str, folder: Path) -> str:
    """Return the command that teaches the converted model what the dense one knows."""
    return shlex.join(
        ["linformer", "distill", "--do_train", "--do_eval"]
        + ["--model_name_or_path", str(folder), "--teacher_name_or_path", name]
        + ["--output_dir", f"{folder}-taught"]
    )

"""Teach an encoder to fill in masked words: arguments, and one function that runs from text to a saved model."""

import math
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from ..common.figures import plot_curves
from ..common.loading import LoadingArguments, check_length, check_tokenizer, declare_loss_scaling, model_length
from ..common.records import Stopwatch, model_facts, write_results
from ..configuration_linformer import LinformerConfig
from ..data.blocks import MaskingCollator, cut_lines, mask_once, pack_blocks, train_tokenizer, unigram_perplexity
from ..data.texts import Table, TextArguments, Texts, in_memory, load_texts
from ..sharing.hub import write_card
from .resuming import find_checkpoint, loss_curves, tokens_seen


try:
    from datasets import Dataset
except ImportError as error:
    raise ImportError("Pretraining needs datasets: pip install linformer_hf[train]") from error


logger = logging.get_logger(__name__)

TOKENIZER_ROWS = 100_000
UNIGRAM_ROWS = 10_000
MASKED, HIDDEN = "masked", "hidden"
HELD_OUT_SHARE = 0.15  # of held-out tokens to hide, whatever training hides, so that runs compare


@dataclass
class PretrainingArguments(TextArguments, LoadingArguments):
    """What is taught, and how the text is masked."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "A checkpoint to go on from. Without it a new model starts from nothing."}
    )
    model_type: str = field(
        default="linformer",
        metadata={"help": "Family of a new model; `roberta` or another that fills in masks makes a dense twin."},
    )
    config_overrides: str | None = field(
        default=None,
        metadata={"help": "Fields of a new model, as in `hidden_size=128,num_hidden_layers=4`."},
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Length of an example in tokens; of a new model also n. By default 512, or the model's n."},
    )
    projected_length: list[int] | None = field(
        default=None, metadata={"help": "k of a new model: one number, or one for each layer. By default 128."}
    )
    projection_sharing: str = field(
        default="layerwise", metadata={"help": "none, headwise, key_value or layerwise; of a new model."}
    )
    projection_type: str = field(
        default="linear", metadata={"help": "linear, mean_pool, max_pool or conv; of a new model."}
    )
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "A tokenizer to take. By default the model's, or one trained on the text."}
    )
    vocab_size: int = field(default=8192, metadata={"help": "Tokens of a tokenizer that is trained on the text."})
    line_by_line: bool = field(
        default=False, metadata={"help": "Make each document one example, instead of packing blocks of equal length."}
    )
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens to predict in training."})
    whole_word_mask: bool = field(default=False, metadata={"help": "Mask all tokens of a word together."})
    short_seq_length: int | None = field(
        default=None,
        metadata={"help": "Train on blocks cut to this length first: cheaper, and long models learn sooner."},
    )
    short_share: float = field(default=0.7, metadata={"help": "Share of the steps that train on short blocks."})


class NewMasks(TrainerCallback):
    """Tell the collator which epoch begins."""

    def __init__(self, collator: MaskingCollator) -> None:
        self.collator = collator

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the epoch, counted in whole passes over the text."""
        self.collator.epoch.fill_(int(state.epoch or 0))


class PretrainingTrainer(Trainer):
    """A Trainer that masks anew in each epoch, and may cut the first part of its batches into shorter blocks.

    A step sees the same tokens either way, in more and shorter rows: a Linformer reads only the first columns of its
    projections then. Step and epoch lie in the Trainer's state, so a resumed run goes on as it would have.

    Args:
        *args: As for `Trainer`.
        data_collator: Masks the examples.
        short_seq_length: Length of a short block, in tokens. None trains on full blocks throughout.
        short_share: Share of the steps that train on short blocks.
        **kwargs: As for `Trainer`.
    """

    def __init__(
        self,
        *args: Any,
        data_collator: MaskingCollator,
        short_seq_length: int | None = None,
        short_share: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, data_collator=data_collator, **kwargs)
        self.short_seq_length = short_seq_length
        self.short_share = short_share
        self.add_callback(NewMasks(data_collator))

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], num_items_in_batch: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Train on one batch, cut into short blocks while it is early."""
        if self.short_seq_length and self.state.global_step < self.short_share * self.state.max_steps:
            inputs = {name: tensor.view(-1, self.short_seq_length) for name, tensor in inputs.items()}
        return super().training_step(model, inputs, num_items_in_batch)


def pretrain(arguments: PretrainingArguments, training: TrainingArguments) -> dict[str, float]:
    """Run masked-language-model training from text to a saved model, and measure it on held-out text.

    Args:
        arguments: Text, model and masking.
        training: The Trainer's own arguments; `do_train` and `do_eval` say what to do.

    Returns:
        What was measured on held-out text: `unigram_perplexity` of guessing from frequencies; `perplexity`, and
        `initial_perplexity` before training, of tokens masked as in training; `hidden_perplexity` where every token
        to predict is hidden, the number to compare with the first; and the Trainer's own.

    Raises:
        ValueError: If arguments contradict each other, or text, tokenizer and model do not fit.
    """
    if not (training.do_train or training.do_eval):
        raise ValueError("Nothing is asked for: give --do_train, --do_eval or both.")
    checkpoint = find_checkpoint(training)
    watch = Stopwatch()
    set_seed(training.seed)
    with training.main_process_first(desc="preparing the text"):
        texts = load_texts(arguments, training.seed)
        tokenizer = load_tokenizer(arguments, texts, checkpoint)
        model = load_model(arguments, tokenizer, training.do_train)
        num_tokens = example_length(arguments, model)
        tokenizer.model_max_length = model_length(model)
        train, held_out = make_examples(texts, tokenizer, num_tokens, arguments, training.seed)

    training.remove_unused_columns = False  # the collator reads what the model's forward does not name
    # within the training, because an evaluation before it would keep a model of several processes from being wrapped
    training.eval_on_start = training.do_train and training.do_eval
    training.include_num_input_tokens_seen = "non_padding"
    trainer = PretrainingTrainer(
        model=model,
        args=training,
        train_dataset=train,
        eval_dataset=held_out[MASKED],
        processing_class=tokenizer,
        data_collator=MaskingCollator(
            tokenizer, arguments.mlm_probability, arguments.whole_word_mask, seed=training.seed
        ),
        short_seq_length=arguments.short_seq_length,
        short_share=arguments.short_share,
    )
    frequencies = (row["input_ids"] for row in islice(train, UNIGRAM_ROWS))
    metrics = {"unigram_perplexity": unigram_perplexity(frequencies, held_out[HIDDEN], len(tokenizer))}
    if training.do_train:
        metrics |= run_training(trainer, checkpoint)
    if training.do_eval:
        metrics["perplexity"] = perplexity(trainer, held_out[MASKED])
        metrics["hidden_perplexity"] = perplexity(trainer, held_out[HIDDEN])
        logger.info(report(metrics))
    if trainer.is_world_process_zero():
        write_results(training.output_dir, metrics | watch.read(), (arguments, training), about(arguments, model))
        if training.do_train:
            write_card(training.output_dir)
        logger.info(f"All of it lies in {training.output_dir}; the numbers are in results.json there.")
    return metrics


def load_tokenizer(arguments: PretrainingArguments, texts: Texts, checkpoint: str | None) -> PreTrainedTokenizerBase:
    """Take the tokenizer of the checkpoint or the model, the one that is named, or train one on the text.

    Raises:
        ValueError: If it has no mask token.
    """
    source = checkpoint or arguments.tokenizer_name or arguments.model_name_or_path
    if source is None:
        logger.info(f"Training a tokenizer of {arguments.vocab_size} tokens.")
        rows = texts["train"].take(TOKENIZER_ROWS) if len_or_none(texts["train"]) is None else texts["train"]
        return train_tokenizer((row["text"] for row in rows), arguments.vocab_size, arguments.max_seq_length or 512)
    tokenizer = AutoTokenizer.from_pretrained(source, **arguments.loading())
    if tokenizer.mask_token is None:
        raise ValueError(f"The tokenizer of {source} has no mask token, so it cannot mask words.")
    return tokenizer


def len_or_none(table: Table) -> int | None:
    """Return the number of rows, or None of a stream."""
    return len(table) if hasattr(table, "__len__") else None


def load_model(
    arguments: PretrainingArguments, tokenizer: PreTrainedTokenizerBase, for_training: bool
) -> PreTrainedModel:
    """Load the model that is named, or start one from nothing.

    Raises:
        ValueError: If the tokenizer has more tokens than the model's embedding table.
    """
    if arguments.model_name_or_path is None:
        if not for_training:
            raise ValueError("There is nothing to evaluate: name a --model_name_or_path, or give --do_train.")
        model = AutoModelForMaskedLM.from_config(new_config(arguments, tokenizer))
        declare_loss_scaling(model)
        millions = model.num_parameters() / 1e6
        logger.info(f"Starting a {model.config.model_type} of {millions:.1f} million parameters from nothing.")
        return model
    model = AutoModelForMaskedLM.from_pretrained(
        arguments.model_name_or_path,
        **arguments.loading(),
        **({"dtype": torch.float32} if for_training else {}),  # mixed precision keeps its weights in this one
    )
    check_tokenizer(tokenizer, model, arguments.model_name_or_path)
    declare_loss_scaling(model)
    return model


def new_config(arguments: PretrainingArguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """Describe a new model: the tokenizer's ids, n, of a Linformer k and sharing, and what is overridden.

    Raises:
        ValueError: If the family is unknown, or fields do not fit together.
    """
    fields = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "max_position_embeddings": arguments.max_seq_length or 512,
    }
    if arguments.model_type == LinformerConfig.model_type:
        fields |= projection_fields(arguments)
    # read against the defaults first, because the fields must fit together when the configuration is made
    overridden = AutoConfig.for_model(arguments.model_type)
    if type(overridden) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise ValueError(f"--model_type is {arguments.model_type!r}, of which there is no model for masked words.")
    if arguments.config_overrides:
        overridden.update_from_string(arguments.config_overrides)
    config = type(overridden)(**{**overridden.to_diff_dict(), **fields})
    with torch.device("meta"):
        unread = config.max_position_embeddings - model_length(AutoModelForMaskedLM.from_config(config))
    config.max_position_embeddings += unread  # RoBERTa's table has rows before the first position
    return config


def projection_fields(arguments: PretrainingArguments) -> dict[str, Any]:
    """Return the configuration fields of a new Linformer that decide how it projects."""
    fields = {"projection_sharing": arguments.projection_sharing, "projection_type": arguments.projection_type}
    if arguments.projected_length:
        one = len(arguments.projected_length) == 1
        fields["projected_length"] = arguments.projected_length[0] if one else arguments.projected_length
    return fields


def example_length(arguments: PretrainingArguments, model: PreTrainedModel) -> int:
    """Return the length of an example in tokens.

    Raises:
        ValueError: If it is longer than the model reads, or short blocks do not divide it.
    """
    num_tokens = check_length(arguments.max_seq_length, model)
    short = arguments.short_seq_length
    if short and (num_tokens % short or arguments.line_by_line):
        raise ValueError(
            f"--short_seq_length is {short}; it must divide the block length {num_tokens}, and it cuts packed blocks, "
            "not --line_by_line."
        )
    return num_tokens


def make_examples(
    texts: Texts, tokenizer: PreTrainedTokenizerBase, num_tokens: int, arguments: PretrainingArguments, seed: int
) -> tuple[Table, dict[str, Dataset]]:
    """Turn documents into training examples, and held-out ones with fixed masks.

    Held-out tokens are masked twice: as in training, where a tenth of those to predict stands there to be copied, and
    with all of them hidden.

    Raises:
        ValueError: If the text is shorter than one block.
    """
    make = cut_lines if arguments.line_by_line else pack_blocks
    examples = {
        split: table.map(
            make(tokenizer, num_tokens, keep_offsets=arguments.whole_word_mask),
            batched=True,
            remove_columns=["text"],
        )
        for split, table in texts.items()
    }
    for split, table in examples.items():
        if len_or_none(table) == 0:
            raise ValueError(
                f"The {split} text is shorter than one block of {num_tokens} tokens: give more text, a smaller "
                "--max_seq_length, or --line_by_line."
            )
    held_out = in_memory(examples["validation"])
    return examples["train"], {
        name: mask_once(held_out, tokenizer, HELD_OUT_SHARE, seed, hide_all=name == HIDDEN)
        for name in (MASKED, HIDDEN)
    }


def run_training(trainer: PretrainingTrainer, checkpoint: str | None) -> dict[str, float]:
    """Train, and return the Trainer's numbers."""
    config = trainer.model.config
    sparse = getattr(config, "sparse_prediction", None)
    if sparse is not None:
        config.sparse_prediction = True  # the same loss from the labelled tokens alone
    result = trainer.train(resume_from_checkpoint=checkpoint)
    if sparse is not None:
        config.sparse_prediction = sparse
    trainer.save_model()
    trainer.save_state()
    if trainer.is_world_process_zero() and (curves := loss_curves(trainer.state)):
        plot_curves(curves, Path(trainer.args.output_dir, "curves"), "Step", "Loss, nats a token")
    tokens = trainer.state.num_input_tokens_seen - tokens_seen(checkpoint)
    metrics = result.metrics | {"tokens_per_second": tokens / result.metrics["train_runtime"]}
    first = next((entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry), None)
    return metrics | ({} if first is None else {"initial_perplexity": math.exp(first)})


def about(arguments: PretrainingArguments, model: PreTrainedModel) -> dict[str, Any]:
    """Say what the card tells of the run."""
    files = ", ".join(Path(file).name for file in arguments.train_file or [])
    return {
        "pipeline_tag": "fill-mask",
        "dataset": arguments.dataset_name or files or "the documentation of Python's standard library",
        "dataset_type": arguments.dataset_name or "text",
        "dataset_ids": [arguments.dataset_name] if arguments.dataset_name else None,
        "base_model": None if Path(arguments.model_name_or_path or ".").is_dir() else arguments.model_name_or_path,
        "metrics": ["perplexity", "hidden_perplexity"],
        "model": model_facts(model),
    }


def report(metrics: dict[str, float]) -> str:
    """Say in two sentences what was learned."""
    before = f", {metrics['initial_perplexity']:.1f} before training" if "initial_perplexity" in metrics else ""
    return (
        f"Perplexity of held-out text, masked as in training: {metrics['perplexity']:.1f}{before}. Where all words to "
        f"predict are hidden: {metrics['hidden_perplexity']:.1f}, and {metrics['unigram_perplexity']:.1f} by guessing "
        "from frequencies."
    )


def perplexity(trainer: Trainer, held_out: Dataset) -> float:
    """Return the perplexity of the tokens of a held-out set that are to be predicted."""
    return math.exp(trainer.evaluate(held_out)["eval_loss"])

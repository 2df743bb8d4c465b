"""Teach an encoder to fill in masked words: arguments, and one function that runs from text to a saved model."""

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from transformers import (
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging

from ..common.loading import LoadingArguments, check_length, declare_loss_scaling
from ..common.options import SHARING_HELP, TYPE_HELP, check_share, refuse_unused
from ..configuration_linformer import LinformerConfig
from ..data.blocks import read_once
from ..data.masking import MaskingCollator, mask_once, unigram_perplexity
from ..data.texts import TextArguments, Texts, load_texts
from ..data.tokenizers import load_tokenizer, train_tokenizer
from ..sharing.card import origin_facts
from .documents import make_examples
from .leading_zeros import keep_leading_zeros
from .new_model import LENGTH, initialize_like_linformer, new_config
from .optimizers import choose_optimizer, uses_fsdp
from .options import check_best_metric, early_stopping
from .pretraining_trainer import PretrainingTrainer
from .progress import perplexity
from .run import (
    RunArguments,
    about_data,
    finish_run,
    first_evaluation,
    fit_tokenizer,
    start_run,
    train_model,
)


try:
    from datasets import Dataset
except ImportError as error:
    raise ImportError("Pretraining needs datasets: pip install linformer_hf[train]") from error


logger = logging.get_logger(__name__)

TOKENIZER_ROWS = 100_000
UNIGRAM_ROWS = 10_000
VOCABULARY = 8192
MASKED_SHARE = 0.15
SHORT_SHARE = 0.7
HELD_OUT_SHARE = 0.15  # of held-out tokens to hide, whatever training hides, so that runs compare
METRICS = ("perplexity", "hidden_perplexity")


@dataclass
class PretrainingArguments(TextArguments, LoadingArguments, RunArguments):
    """What is taught, and how the text is masked."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "A checkpoint to go on from. Without it a new model is trained from scratch."}
    )
    model_type: str | None = field(
        default=None,
        metadata={
            "help": "Family of a new model, by default linformer; `roberta` or another that fills in masks makes a "
            "dense twin."
        },
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
        default=None,
        metadata={
            "help": "k of a new model: a number, or several, of which the last holds for all further layers. By "
            "default 128."
        },
    )
    projection_sharing: str | None = field(
        default=None,
        metadata={"help": f"{SHARING_HELP} Of a new model, by default layerwise."},
    )
    projection_type: str | None = field(
        default=None, metadata={"help": f"{TYPE_HELP} Of a new model, by default linear."}
    )
    linformer_init: bool = field(
        default=False,
        metadata={
            "help": "Start positions, query and key maps of a new dense model as a Linformer's, to compare the two."
        },
    )
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "A tokenizer to take. By default the model's, or one trained on the text."}
    )
    vocab_size: int | None = field(
        default=None, metadata={"help": "Tokens of a tokenizer that is trained on the text. By default 8192."}
    )
    line_by_line: bool = field(
        default=False, metadata={"help": "Make each document one example, instead of packing blocks of equal length."}
    )
    mlm_probability: float | None = field(
        default=None, metadata={"help": "Share of the tokens to predict in training. By default 0.15."}
    )
    whole_word_mask: bool = field(default=False, metadata={"help": "Mask all tokens of a word together."})
    short_seq_length: int | None = field(
        default=None,
        metadata={"help": "Train on blocks cut to this length first, which cost less."},
    )
    short_share: float | None = field(
        default=None, metadata={"help": "Share of the steps that train on short blocks. By default 0.7."}
    )


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
    run = start_run(arguments, training)
    check_arguments(arguments, training)
    check_best_metric(training, names=())
    callbacks = early_stopping(arguments.early_stopping_patience, training)
    optimizer = choose_optimizer(arguments.use_muon, arguments.muon_learning_rate, training)
    model_name = run.trained_folder or arguments.model_name_or_path

    with training.main_process_first(desc="preparing the text"):
        texts = load_texts(arguments, training.seed, ("train", "validation") if training.do_train else ("validation",))
        tokenizer_name = run.checkpoint or run.trained_folder or arguments.tokenizer_name or model_name
        if tokenizer_name is None:
            tokenizer = learn_tokenizer(texts, arguments.vocab_size or VOCABULARY, arguments.max_seq_length or LENGTH)
        else:
            tokenizer = load_tokenizer(tokenizer_name, arguments.loading(), needs=("mask",))
        if model_name is None:
            config = new_config(
                tokenizer,
                arguments.model_type,
                arguments.max_seq_length,
                arguments.projected_length,
                {"projection_sharing": arguments.projection_sharing, "projection_type": arguments.projection_type},
                arguments.config_overrides,
            )
            model = start_model(config, arguments.linformer_init)
        else:
            model = load_model(model_name, arguments.loading(), for_training=training.do_train)
        fit_tokenizer(tokenizer, model, model_name or "the new model")
        num_tokens = check_length(arguments.max_seq_length, model)
        check_short_length(arguments.short_seq_length, num_tokens)
        train, held_out = make_examples(
            texts,
            tokenizer,
            num_tokens,
            arguments.line_by_line,
            arguments.whole_word_mask,
            arguments.preprocessing_num_workers,
        )
        # masked as in training, where a tenth of the tokens to predict stands there to be copied, and all hidden
        masked, hidden = (
            mask_once(held_out, tokenizer, HELD_OUT_SHARE, training.seed, hide_all=hide_all)
            for hide_all in (False, True)
        )
        numbers = {}
        if train is not None:
            frequencies = (row["input_ids"] for row in islice(read_once(train), UNIGRAM_ROWS))
            numbers["unigram_perplexity"] = unigram_perplexity(
                frequencies, hidden, len(tokenizer), tokenizer.all_special_ids
            )

    training.remove_unused_columns = False  # the collator reads what the model's forward does not name
    # within the training, because an evaluation before it would keep a model of several processes from being wrapped
    training.eval_on_start = training.do_train and training.do_eval
    training.include_num_input_tokens_seen = "non_padding"
    if training.do_train and model_name is not None and arguments.keep_leading_zeros:
        keep_leading_zeros(model, is_sharded=uses_fsdp(training))
    trainer = PretrainingTrainer(
        model=model,
        args=training,
        train_dataset=train,
        eval_dataset=masked,
        processing_class=tokenizer,
        data_collator=MaskingCollator(
            tokenizer, arguments.mlm_probability or MASKED_SHARE, arguments.whole_word_mask, seed=training.seed
        ),
        callbacks=callbacks,
        optimizer_cls_and_kwargs=optimizer,
        short_seq_length=arguments.short_seq_length,
        short_share=SHORT_SHARE if arguments.short_share is None else arguments.short_share,
    )

    if training.do_train:
        numbers |= train_model(trainer, run, loss_unit=", nats a token")
        if before := first_evaluation(trainer.state):
            numbers["initial_perplexity"] = perplexity(before["loss"])
    if training.do_eval:
        numbers["perplexity"] = measure_perplexity(trainer, masked)
        numbers["hidden_perplexity"] = measure_perplexity(trainer, hidden)
        logger.info(report(numbers))
    about = {
        **about_data(
            arguments.dataset_name,
            arguments.train_file or arguments.validation_file,
            "text",
            arguments.builtin_sample,
            arguments.validation_file,
        ),
        "pipeline_tag": "fill-mask",
        **origin_facts(arguments.model_name_or_path, arguments.model_revision, arguments.token),
        "metrics": list(METRICS),
    }
    finish_run(trainer, run, numbers, arguments, about, model)
    return numbers


def check_arguments(arguments: PretrainingArguments, training: TrainingArguments) -> None:
    """Check options against each other before anything is loaded.

    Raises:
        ValueError: If one would have no effect, or there is nothing to evaluate.
    """
    of_new_models = {
        name: getattr(arguments, name)
        for name in (
            *("model_type", "config_overrides", "linformer_init"),
            *("projected_length", "projection_sharing", "projection_type"),
        )
    }
    of_training = {
        name: getattr(arguments, name)
        for name in ("mlm_probability", "whole_word_mask", "short_seq_length", "short_share", "use_muon")
    }
    if arguments.model_name_or_path:
        reason = "with --model_name_or_path, whose model has these fields already"
        refuse_unused({**of_new_models, "vocab_size": arguments.vocab_size}, reason)
    elif not training.do_train:
        raise ValueError("There is nothing to evaluate: name a --model_name_or_path, or give --do_train.")
    if arguments.model_type in (None, LinformerConfig.model_type):
        refuse_unused({"linformer_init": arguments.linformer_init}, "with --model_type linformer, which starts so")
    if arguments.tokenizer_name:
        refuse_unused({"vocab_size": arguments.vocab_size}, "with --tokenizer_name")
    if not training.do_train:
        refuse_unused(of_training, "without --do_train")
    if not arguments.short_seq_length:
        refuse_unused({"short_share": arguments.short_share}, "without --short_seq_length")
    if arguments.line_by_line:
        reason = "with --line_by_line, because it cuts packed blocks"
        refuse_unused({"short_seq_length": arguments.short_seq_length}, reason)
    check_share("short_share", arguments.short_share)
    check_share("mlm_probability", arguments.mlm_probability)
    if arguments.mlm_probability == 0:
        raise ValueError("--mlm_probability is 0.0, so there is no word to predict; it must be more than 0.")


def check_short_length(short_seq_length: int | None, num_tokens: int) -> None:
    """Check that blocks can be cut into short ones.

    Raises:
        ValueError: If the short length does not divide the block length.
    """
    if short_seq_length is not None and (short_seq_length < 1 or num_tokens % short_seq_length):
        raise ValueError(f"--short_seq_length is {short_seq_length}; it must divide the block length {num_tokens}.")


def learn_tokenizer(texts: Texts, vocab_size: int, max_length: int) -> PreTrainedTokenizerBase:
    """Train a tokenizer on the text."""
    logger.info(f"Training a tokenizer of {vocab_size} tokens.")
    rows = texts["train"]
    if not hasattr(rows, "__len__"):  # a stream, whose end may be far
        rows = rows.take(TOKENIZER_ROWS)
    return train_tokenizer((row["text"] for row in rows), vocab_size, max_length)


def start_model(config: PreTrainedConfig, linformer_init: bool) -> PreTrainedModel:
    """Initialize a new model, a dense one as its family does or as a Linformer.

    Raises:
        ValueError: If a family cannot be initialized as a Linformer.
    """
    model = AutoModelForMaskedLM.from_config(config)
    if linformer_init:
        initialize_like_linformer(model)
    declare_loss_scaling(model)
    logger.info(
        f"Starting a {config.model_type} of {model.num_parameters() / 1e6:.1f} million parameters from scratch."
    )
    return model


def load_model(name: str, loading: dict[str, Any], for_training: bool) -> PreTrainedModel:
    """Load the model that is named."""
    dtype = {"dtype": torch.float32} if for_training else {}  # mixed precision keeps its weights in this one
    model = AutoModelForMaskedLM.from_pretrained(name, **loading, **dtype)
    declare_loss_scaling(model)
    return model


def measure_perplexity(trainer: Trainer, held_out: Dataset) -> float:
    """Return the perplexity of the tokens of a held-out set that are to be predicted."""
    return perplexity(trainer.evaluate(held_out)["eval_loss"])


def report(numbers: dict[str, float]) -> str:
    """Say in two sentences what was learned; what was not measured in this call is left out."""
    before = f", {numbers['initial_perplexity']:.1f} before training" if "initial_perplexity" in numbers else ""
    guess = ""
    if "unigram_perplexity" in numbers:
        guess = f", and {numbers['unigram_perplexity']:.1f} by guessing from frequencies"
    return (
        f"Perplexity of held-out text, masked as in training: {numbers['perplexity']:.1f}{before}. Where all words to "
        f"predict are hidden: {numbers['hidden_perplexity']:.1f}{guess}."
    )

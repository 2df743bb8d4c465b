"""Options of loading, and whether model, length and tokenizer fit each other."""

import pytest
from conftest import tiny_model
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from linformer_hf import LinformerForMaskedLM
from linformer_hf.common.command_line import OptionParser
from linformer_hf.common.loading import LoadingArguments, check_length, check_tokenizer, load_config, model_length


SMALL = {"vocab_size": 61, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}


@pytest.mark.parametrize("name", ["--revision", "--model_revision", "--model-revision"])
def test_revision_and_token_go_to_from_pretrained(name):
    (found,) = OptionParser([LoadingArguments], "linformer onnx", None).parse([name, "v1", "--token", "hf_mine"])
    assert found.loading() == {"revision": "v1", "trust_remote_code": False, "token": "hf_mine"}


@pytest.mark.parametrize(
    ("model", "length"),
    [
        (lambda: tiny_model(), 32),
        (lambda: BertModel(BertConfig(max_position_embeddings=20, **SMALL)), 20),
        (lambda: RobertaModel(RobertaConfig(max_position_embeddings=20, pad_token_id=1, **SMALL)), 18),
    ],
    ids=["linformer", "bert", "roberta, whose first two rows no token uses"],
)
def test_the_length_of_a_model_is_what_it_reads(model, length):
    model = model()
    assert model_length(model) == check_length(None, model) == check_length(length, model) == length
    for wrong in (0, length + 1):
        with pytest.raises(ValueError, match=f"--max_seq_length is {wrong}; the model reads 1 to {length} tokens"):
            check_length(wrong, model)


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused():
    model = tiny_model(LinformerForMaskedLM)
    check_tokenizer(range(61), model, "tiny")  # only the count is asked for
    with pytest.raises(ValueError, match="has 62 tokens, the embedding table of tiny only 61 rows"):
        check_tokenizer(range(62), model, "tiny")


def test_a_model_that_is_not_to_be_had_is_named(tmp_path):
    with pytest.raises(ValueError, match="^nobody/nothing is no folder, and not to be had from the Hub: "):
        load_config("nobody/nothing")
    with pytest.raises(ValueError, match=f"Unrecognized model in {tmp_path}"):
        load_config(str(tmp_path))
    tiny_model().config.save_pretrained(tmp_path)
    assert load_config(str(tmp_path)).model_type == "linformer"

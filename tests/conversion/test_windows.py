"""A text that is longer than a model reads, read in windows."""

import math

import pytest
import torch
from conftest import assert_close, random_ids
from dense_twins import make_dense, make_linformer, make_tokenizer
from transformers import BertForMaskedLM, BertForSequenceClassification, BertModel

from linformer_hf.conversion.windows import attention_modules, read, read_window, window_sizes


TOKENIZER = make_tokenizer()


@pytest.mark.parametrize("longest", [5, 16, 32])
@pytest.mark.parametrize("num_tokens", [4, 16, 33, 64, 100])
def test_windows_cover_the_text_and_leave_room_for_their_frame(num_tokens, longest):
    sizes = window_sizes(num_tokens, longest)
    assert sum(sizes) == num_tokens
    framed = [size + (number > 0) + (number < len(sizes) - 1) for number, size in enumerate(sizes)]
    assert max(framed) <= longest
    assert max(framed) - min(framed) <= 1
    assert len(sizes) == (1 if num_tokens <= longest else math.ceil((num_tokens - 2) / (longest - 2)))


def test_long_text_is_read_in_windows_that_are_framed_as_the_teacher_is_used_to():
    dense = make_dense(BertForSequenceClassification, TOKENIZER, max_position_embeddings=9).double()
    ids = random_ids(2, 18)
    start, end = ids[:, :1], ids[:, -1:]
    windows = [torch.cat(parts, 1) for parts in ((ids[:, :7], end), (start, ids[:, 7:12], end), (start, ids[:, 12:]))]
    outputs = [dense(window, output_hidden_states=True) for window in windows]
    found = read(dense, ids, 9, recorded_modules=attention_modules(dense))
    assert found.window_sizes == [7, 5, 6]
    for layer, states in enumerate(found.hidden_states, start=1):
        first, second, third = (output.hidden_states[layer] for output in outputs)
        assert_close(states, torch.cat([first[:, :-1], second[:, 1:-1], third[:, 1:]], 1))
    assert [tuple(states.shape) for states in found.attention_outputs] == [(2, 18, 16)] * 2
    assert_close(found.logits, sum(output.logits for output in outputs) / 3)


def test_windows_that_hold_no_token_of_a_text_do_not_count_in_its_logits():
    dense = make_dense(BertForSequenceClassification, TOKENIZER, max_position_embeddings=9).double()
    ids, mask = random_ids(2, 18), torch.ones(2, 18, dtype=torch.long)
    ids[1, 6:], mask[1, 6:] = TOKENIZER.pad_token_id, 0
    found = read(dense, ids, 9, mask)
    assert_close(found.logits[0], read(dense, ids[:1], 9).logits[0])
    assert_close(found.logits[1], dense(ids[1:, :6]).logits[0])


def test_padding_changes_no_state_of_a_window():
    dense = make_dense(BertForMaskedLM, TOKENIZER, max_position_embeddings=9).double()
    ids, mask = random_ids(2, 18), torch.ones(2, 18, dtype=torch.long)
    ids[1, 10:], mask[1, 10:] = TOKENIZER.pad_token_id, 0
    padded = read(dense, ids, 9, mask)
    whole = read(dense, ids[:1], 9)
    assert_close(padded.logits[0], whole.logits[0])
    start, end = ids[1:, :1], ids[1:, 9:10]
    first = read_window(dense, torch.cat([ids[1:, :7], end], 1))
    second = read_window(dense, torch.cat([start, ids[1:, 7:10]], 1))
    expected = torch.cat([first.logits[:, :-1], second.logits[:, 1:]], 1)
    assert_close(padded.logits[1:, :10], expected)


def test_recorded_attention_outputs_are_those_before_the_residual_sum():
    dense = make_dense(BertModel, TOKENIZER).double()
    linformer = make_linformer(dense, projected_length=32).double()
    ids = random_ids(2, 32)
    ours, theirs = (read(model, ids, 32, recorded_modules=attention_modules(model)) for model in (linformer, dense))
    for mine, wanted in zip(ours.attention_outputs, theirs.attention_outputs):
        assert_close(mine, wanted)
    embeddings = dense.embeddings(ids)
    layer = dense.encoder.layer[0].attention
    assert_close(layer.output.LayerNorm(theirs.attention_outputs[0] + embeddings), layer(embeddings)[0])

"""Documents into blocks and lines, against a loop over all tokens."""

from itertools import islice

import pytest
from datasets import Dataset
from torch.utils.data import DataLoader

from linformer_hf.data.blocks import (
    DOCUMENTS,
    ExampleStream,
    cut_lines,
    iterate_blocks,
    iterate_lines,
    pack_blocks,
    read_once,
)
from linformer_hf.data.masking import MaskingCollator
from linformer_hf.data.texts import TextArguments, load_texts
from linformer_hf.data.tokenizers import train_tokenizer


SENTENCES = [
    f"The {animal} sees {number} boats on the river." for animal in ("cat", "dog", "owl") for number in range(9)
]
MANY = [sentence for number in range(90) for sentence in SENTENCES] + ["", "x"]  # more than two thousand


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES, 300, 32)


def expected_blocks(texts, tokenizer, num_tokens):
    """Put all tokens behind each other, and cut."""
    stream = []
    for text in texts:
        stream += [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    room = num_tokens - 2
    return [[0, *stream[room * number : room * (number + 1)], 2] for number in range(len(stream) // room)]


@pytest.mark.parametrize("num_tokens", [7, 33, 1024])
def test_blocks_hold_the_whole_text_in_order_but_for_one_remainder(tokenizer, num_tokens):
    expected = expected_blocks(MANY, tokenizer, num_tokens)
    packed = pack_blocks(Dataset.from_dict({"text": MANY}), tokenizer, num_tokens)
    assert len(MANY) > 2 * DOCUMENTS
    assert list(packed["input_ids"]) == expected
    assert [block["input_ids"] for block in iterate_blocks(MANY, tokenizer, num_tokens)] == expected


def test_short_lines_fill_blocks_of_sixteen_thousand_tokens(tokenizer):
    packed = pack_blocks(Dataset.from_dict({"text": MANY}), tokenizer, 16_384)
    assert list(packed["input_ids"]) == expected_blocks(MANY, tokenizer, 16_384)
    assert len(packed) > 0


def test_blocks_do_not_depend_on_the_number_of_processes(tokenizer):
    table = Dataset.from_dict({"text": MANY})
    one, three = (pack_blocks(table, tokenizer, 64, num_workers=workers, keep_offsets=True) for workers in (None, 3))
    assert one.to_list() == three.to_list()


def test_blocks_follow_the_order_of_a_table_that_was_shuffled(tokenizer):
    table = Dataset.from_dict({"text": MANY}).shuffle(seed=3)
    assert list(pack_blocks(table, tokenizer, 64)["input_ids"]) == expected_blocks(table["text"], tokenizer, 64)


def test_offsets_belong_to_the_tokens_beside_them(tokenizer):
    table = Dataset.from_dict({"text": SENTENCES})
    packed = pack_blocks(table, tokenizer, 32, keep_offsets=True)
    assert packed.to_list() == [
        {"input_ids": block["input_ids"], "offset_mapping": [list(pair) for pair in block["offset_mapping"]]}
        for block in iterate_blocks(SENTENCES, tokenizer, 32, keep_offsets=True)
    ]
    spans = tokenizer(SENTENCES[0], add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert packed[0]["offset_mapping"][: len(spans) + 1] == [[0, 0], *map(list, spans)]


def test_text_shorter_than_a_block_is_refused(tokenizer):
    with pytest.raises(ValueError, match="shorter than one block of 512 tokens"):
        pack_blocks(Dataset.from_dict({"text": SENTENCES[:2]}), tokenizer, 512)
    with pytest.raises(ValueError, match="shorter than one block of 512 tokens"):
        pack_blocks(Dataset.from_dict({"text": SENTENCES[:2]}).to_iterable_dataset(), tokenizer, 512)


def test_lines_are_cut_to_n_tokens(tokenizer):
    table = Dataset.from_dict({"text": SENTENCES})
    lines = cut_lines(table, tokenizer, 8)
    assert lines["input_ids"] == [tokenizer(text, truncation=True, max_length=8)["input_ids"] for text in SENTENCES]
    assert lines.to_list() == list(iterate_lines(SENTENCES, tokenizer, 8))
    assert lines.to_list() == list(read_once(cut_lines(table.to_iterable_dataset(), tokenizer, 8)))


def test_a_stream_gives_the_blocks_of_the_table_pass_after_pass(tokenizer):
    table = Dataset.from_dict({"text": MANY})
    expected = pack_blocks(table, tokenizer, 64)
    stream = pack_blocks(table.to_iterable_dataset(), tokenizer, 64, mark_passes=True)
    assert isinstance(stream, ExampleStream)
    blocks = list(islice(stream, 2 * len(expected)))
    assert [block["input_ids"] for block in blocks] == 2 * list(expected["input_ids"])
    assert [block["epoch"] for block in blocks] == [0] * len(expected) + [1] * len(expected)
    assert list(read_once(stream)) == list(read_once(expected))


@pytest.mark.parametrize("make", [pack_blocks, cut_lines])
def test_the_second_pass_over_a_stream_has_other_masks(tokenizer, make):
    stream = make(Dataset.from_dict({"text": SENTENCES}).to_iterable_dataset(), tokenizer, 16, mark_passes=True)
    length = len(list(read_once(stream)))
    first, second = list(islice(stream, length)), list(islice(stream, length, 2 * length))
    collate = MaskingCollator(tokenizer, 0.3, seed=0)
    assert [row["input_ids"] for row in first] == [row["input_ids"] for row in second]
    assert not collate(first)["labels"].equal(collate(second)["labels"])
    assert "epoch" not in collate(first)


def test_a_shuffled_stream_has_another_order_in_each_pass_and_loses_nothing(tokenizer):
    documents = Dataset.from_dict({"text": SENTENCES}).to_iterable_dataset().shuffle(seed=1, buffer_size=100)
    stream = cut_lines(documents, tokenizer, 32)
    passes = [[tuple(row["input_ids"]) for row in stream.read_pass(number)] for number in (0, 1, 1)]
    assert passes[0] != passes[1] == passes[2]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(map(tuple, tokenizer(SENTENCES)["input_ids"]))


def test_processes_that_load_a_stream_share_its_files(tokenizer, tmp_path):
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text("\n".join(f"{number} {text}" for text in SENTENCES))
    arguments = TextArguments(train_file=[str(tmp_path)], streaming=True, shuffle_buffer_size=1)
    stream = cut_lines(load_texts(arguments, 0, splits=("train",))["train"], tokenizer, 32, mark_passes=True)
    loader = DataLoader(stream, batch_size=None, num_workers=2)
    rows = [tuple(row["input_ids"]) for row in islice(loader, 2 * len(SENTENCES))]
    assert len(set(rows)) == 2 * len(SENTENCES)

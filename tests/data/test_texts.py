"""Where text comes from: every format, every way to hold some out, and every mistake a user can make."""

import math

import pytest
from datasets import Dataset, DatasetDict

from linformer_hf.data.texts import TextArguments, builtin_sample, expand_files, load_texts


SENTENCES = [
    f"The {animal} sees {number} boats on the river." for animal in ("cat", "dog", "owl") for number in range(9)
]


def write(folder, name, text):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_the_sample_is_english_and_split_without_overlap():
    sample = builtin_sample()
    train, held_out = sample["train"]["text"], sample["validation"]["text"]
    assert sum(map(len, train)) > 1_000_000
    assert len(held_out) == math.ceil((len(train) + len(held_out)) / 12)
    assert not set(train) & set(held_out)
    assert any("list comprehension" in text for text in train)


def test_the_sample_is_the_same_each_time():
    assert builtin_sample()["validation"]["text"] == builtin_sample()["validation"]["text"]


@pytest.mark.parametrize("suffix", ["txt", "json", "jsonl", "csv", "tsv", "parquet"])
def test_every_file_format_gives_the_same_text(tmp_path, suffix):
    table, file = Dataset.from_dict({"text": SENTENCES}), str(tmp_path / f"corpus.{suffix}")
    if suffix == "txt":
        write(tmp_path, "corpus.txt", "\n".join(SENTENCES) + "\n")
    elif suffix in ("json", "jsonl"):
        table.to_json(file)
    elif suffix == "parquet":
        table.to_parquet(file)
    else:
        table.to_csv(file, sep="," if suffix == "csv" else "\t")
    texts = load_texts(TextArguments(train_file=[file], validation_share=0.2), seed=0)
    assert sorted([*texts["train"]["text"], *texts["validation"]["text"]]) == sorted(SENTENCES)
    assert len(texts["validation"]) == round(0.2 * len(SENTENCES))


@pytest.mark.parametrize(("sample_by", "rows"), [("line", 4), ("paragraph", 2), ("document", 1)])
def test_a_text_file_is_read_by_line_paragraph_or_document(tmp_path, sample_by, rows):
    file = write(tmp_path, "corpus.txt", "one\ntwo\n\nthree\nfour\n")
    arguments = TextArguments(train_file=[file], validation_file=[file], sample_by=sample_by)
    assert len(load_texts(arguments, seed=0)["train"]) == rows


def test_files_folders_and_patterns_are_listed_in_order(tmp_path):
    files = [write(tmp_path, name, "text") for name in ("b.txt", "a.txt")]
    assert expand_files([str(tmp_path)]) == sorted(files) == expand_files([str(tmp_path / "*.txt")])
    assert expand_files(files) == files


def test_streams_hold_out_their_first_documents(tmp_path):
    file = write(tmp_path, "corpus.txt", "\n".join(SENTENCES) + "\n")
    texts = load_texts(TextArguments(train_file=[file], streaming=True, max_eval_samples=5), seed=0)
    assert [row["text"] for row in texts["validation"]] == SENTENCES[:5]
    assert [row["text"] for row in texts["train"]] == SENTENCES[5:]


def test_rows_without_text_are_left_out_and_counted(tmp_path, caplog):
    file = str(tmp_path / "corpus.json")
    Dataset.from_dict({"text": ["one", "", "  ", None, "two", "three"]}).to_json(file)
    with caplog.at_level("INFO", logger="linformer_hf"):
        texts = load_texts(TextArguments(train_file=[file], validation_share=0.4), seed=0)
    assert sorted([*texts["train"]["text"], *texts["validation"]["text"]]) == ["one", "three", "two"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train_file": ["missing.txt"]}, "missing.txt"),
        ({"train_file": ["empty.txt"]}, "empty.txt.*empty"),
        ({"train_file": ["one.txt"]}, "too few"),
        ({"train_file": ["notes.pdf"]}, r"\.pdf.*\.txt"),
        ({"train_file": ["table.csv"]}, "--text_column.*title, body"),
        ({"train_file": ["table.csv"], "text_column": "bodies"}, "bodies.*title, body"),
    ],
    ids=["missing", "empty", "one document", "format", "which column", "no such column"],
)
def test_bad_sources_are_refused_with_name_and_repair(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "empty.txt", "")
    write(tmp_path, "one.txt", "only one line\n")
    write(tmp_path, "notes.pdf", "x")
    write(tmp_path, "table.csv", "title,body\na,b\nc,d\n")
    with pytest.raises(ValueError, match=message):
        load_texts(TextArguments(**arguments), seed=0)


def test_a_column_can_be_named(tmp_path):
    file = write(tmp_path, "table.csv", "title,body\na,b\nc,d\n")
    texts = load_texts(TextArguments(train_file=[file], text_column="body"), seed=0)
    assert isinstance(texts, DatasetDict)
    assert sorted([*texts["train"]["text"], *texts["validation"]["text"]]) == ["b", "d"]

"""Text of every format and source, held-out text, streams, and options and files that are refused."""

import gzip
import math
import os
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict, IterableDataset

from linformer_hf.data import library_sample
from linformer_hf.data import texts as texts_module
from linformer_hf.data.file_formats import expand_files
from linformer_hf.data.library_sample import builtin_sample, library_files, module_docstrings
from linformer_hf.data.texts import TextArguments, load_texts


SENTENCES = [
    f"The {animal} sees {number} boats on the river." for animal in ("cat", "dog", "owl") for number in range(9)
]


def write(folder, name, text):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_the_sample_is_english_and_split_without_overlap():
    documentation = builtin_sample()
    train, held_out = documentation["train"]["text"], documentation["validation"]["text"]
    assert sum(map(len, train)) > 1_000_000
    assert len(held_out) == math.ceil((len(train) + len(held_out)) / 12)
    assert not set(train) & set(held_out)
    assert any("list comprehension" in text for text in train)


def test_the_sample_is_the_same_each_time(few_files):
    first, second = builtin_sample(), builtin_sample()
    assert all(first[split]["text"] == second[split]["text"] for split in first)


def test_the_source_code_is_that_of_the_library_without_its_tests():
    sample = builtin_sample("source")
    train, held_out = sample["train"]["text"], sample["validation"]["text"]
    files = library_files(Path(os.__file__).parent)
    assert not any(
        {"test", "tests", "site-packages"} & set(file.parts[len(Path(os.__file__).parts) - 1 :]) for file in files
    )
    assert held_out == [file.read_text("utf-8") for file in files[::12]]
    assert Path(os.__file__).read_text("utf-8") in {*train, *held_out}
    assert sum(map(len, train)) > 5_000_000


@pytest.fixture
def few_files(monkeypatch):
    """Let the sample be made of the first files of the library, because parsing all of them takes seconds."""
    files = library_files(Path(os.__file__).parent)[:60]
    monkeypatch.setattr(library_sample, "library_files", lambda library: files)
    return files


def test_documentation_and_source_hold_the_same_modules_out(few_files):
    sample, files = builtin_sample("both"), few_files
    train, held_out = ("\n".join(sample[split]["text"]) for split in ("train", "validation"))
    docstrings = dict(module_docstrings(files))
    for file, wanted, other in ((files[12], held_out, train), (files[13], train, held_out)):
        assert file.read_text("utf-8") in wanted and file.read_text("utf-8") not in other
    own = next(docstrings[file] for file in files[::12] if len(docstrings.get(file, "")) > 2000)
    assert own in held_out and own not in train


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


def test_a_name_with_brackets_is_that_file_and_hidden_files_are_left_out(tmp_path):
    for name in ("b1.txt", "b[1].txt", "A.TXT", "notes.md", ".hidden.txt", ".git/c.txt", "d/e.jsonl.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert expand_files([str(tmp_path / "b[1].txt")]) == [str(tmp_path / "b[1].txt")]
    names = [Path(file).relative_to(tmp_path).as_posix() for file in expand_files([str(tmp_path)])]
    assert names == ["A.TXT", "b1.txt", "b[1].txt", "d/e.jsonl.gz"]
    assert load_all(tmp_path / "b[1].txt") == ["b[1].txt"]


def load_all(*files, **options):
    """Read all text of files."""
    arguments = TextArguments(train_file=[str(file) for file in files], **options)
    return [row["text"] for row in load_texts(arguments, 0, splits=("train",))["train"]]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["text.txt", "TEXT.TXT", "text.txt.gz", "text.csv.gz", "text.jsonl", "text.jsonl.gz"])
def test_compressed_files_and_a_byte_order_mark_are_read(tmp_path, name, streaming):
    lines = {"txt": "Größe\r\nzwei\n", "csv": "text\nGröße\nzwei\n", "jsonl": '{"text": "Größe"}\n{"text": "zwei"}\n'}
    content = lines[name.lower().split(".")[1]].encode("utf-8-sig")
    (tmp_path / name).write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
    assert sorted(load_all(tmp_path / name, streaming=streaming)) == ["Größe", "zwei"]


def test_a_csv_text_over_several_lines_is_one_document(tmp_path):
    write(tmp_path, "text.csv", 'id,text\n1,"one, two\nthree ""four"""\n2,NA\n')
    assert load_all(tmp_path / "text.csv") == ['one, two\nthree "four"', "NA"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("latin.txt", "eins\nGröße\n".encode("latin-1"), "latin.txt: line 2, byte 7 of the file is 0xf6.*not UTF-8"),
        ("utf16.txt", "eins".encode("utf-16"), "utf16.txt: line 1, byte 0 of the file is 0xff.*not UTF-8"),
        ("open.csv", b'text\n"one\ntwo\n', "open.csv: .*the row that starts in line 2: unexpected end of data"),
        ("more.csv", b"text,id\na,1\nb,2,3\n", "line 3: the row has 3 fields, the header has 2"),
        ("half.jsonl", b'{"text": "a"}\n{"text": "b\n', "half.jsonl: not readable as json: line 2"),
        ("mixed.jsonl", b'{"text": "a"}\n{"text": 7}\n', "mixed.jsonl: line 2: the column 'text' holds no text: 7"),
        ("half.txt.gz", gzip.compress(b"text" * 99, mtime=0)[:-9], "half.txt.gz: not readable as gzip"),
        ("half.parquet", b"PAR1", "half.parquet: not readable as parquet"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path, name, content, message, streaming):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as refusal:
        load_all(tmp_path / name, streaming=streaming)
    assert "\n" not in str(refusal.value)


def test_a_file_of_empty_lines_is_refused_by_name(tmp_path):
    (tmp_path / "blank.txt").write_text("\n\n  \n")
    with pytest.raises(ValueError, match="blank.txt: there is no text in it"):
        load_all(tmp_path / "blank.txt")


def test_damage_that_another_process_finds_is_named_as_well(tmp_path):
    files = [tmp_path / name for name in ("a.txt", "b.txt")]
    files[0].write_text("one\n")
    files[1].write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="b.txt: line 1, byte 0"):
        load_all(*files, preprocessing_num_workers=2)


def test_several_processes_read_the_same_text(tmp_path):
    files = [Path(write(tmp_path, f"{number}.txt", "\n".join(SENTENCES[number::5]))) for number in range(5)]
    assert load_all(*files, preprocessing_num_workers=3) == load_all(*files)


def test_a_file_that_has_changed_is_read_again(tmp_path):
    file = Path(write(tmp_path, "text.txt", "old\n"))
    assert load_all(file) == ["old"]
    file.write_text("new\n")
    os.utime(file, (1, 1))
    assert load_all(file) == ["new"]


@pytest.mark.parametrize("rows", [40, 500])
def test_a_stream_of_few_documents_holds_some_out_and_leaves_the_rest_to_train_on(tmp_path, rows):
    lines = [f"Line {number} of the text." for number in range(rows)]
    file = write(tmp_path, "corpus.txt", "\n".join(lines) + "\n")
    texts = load_texts(TextArguments(train_file=[file], streaming=True, validation_share=0.2), seed=0)
    train, held_out = [row["text"] for row in texts["train"]], texts["validation"]["text"]
    assert isinstance(texts["train"], IterableDataset) and isinstance(texts["validation"], Dataset)
    assert sorted([*train, *held_out]) == sorted(lines)
    assert 0.08 * rows < len(held_out) < 0.4 * rows


def test_a_stream_is_shuffled_within_a_buffer_by_the_seed(tmp_path):
    lines = [f"{topic} {number}" for topic in ("alpha", "beta") for number in range(100)]
    file = write(tmp_path, "sorted.txt", "\n".join(lines) + "\n")

    def read(seed, **options):
        arguments = TextArguments(train_file=[file], streaming=True, **options)
        return [row["text"] for row in load_texts(arguments, seed, splits=("train",))["train"]]

    assert 20 < sum("alpha" in text for text in read(1)[:100]) < 80
    assert read(1) == read(1) != read(2)
    assert sorted(read(1)) == sorted(lines)
    assert read(1, shuffle_buffer_size=1) == lines
    assert all("alpha" in text for text in read(1, shuffle_buffer_size=10)[:90])


def test_a_stream_holds_out_at_most_as_many_as_are_asked_for(tmp_path):
    file = write(tmp_path, "corpus.txt", "\n".join(SENTENCES * 9) + "\n")
    options = {"streaming": True, "validation_share": 0.5, "max_eval_samples": 3, "max_train_samples": 7}
    texts = load_texts(TextArguments(train_file=[file], **options), seed=0)
    assert (len(texts["validation"]), len(list(texts["train"]))) == (3, 7)
    assert not set(texts["validation"]["text"]) & {row["text"] for row in texts["train"]}


def test_a_held_out_file_alone_is_what_is_measured_on(tmp_path):
    file = write(tmp_path, "held-out.txt", "\n".join(SENTENCES) + "\n")
    texts = load_texts(TextArguments(validation_file=[file]), seed=0, splits=("validation",))
    assert list(texts) == ["validation"]
    assert texts["validation"]["text"] == SENTENCES
    with pytest.raises(ValueError, match="There is no training text, only validation: give --train_file"):
        load_texts(TextArguments(validation_file=[file]), seed=0)


def test_the_held_out_share_is_the_same_where_nothing_is_trained(tmp_path):
    file = write(tmp_path, "corpus.txt", "\n".join(SENTENCES) + "\n")
    held_out = [
        load_texts(TextArguments(train_file=[file], validation_share=0.3), 7, splits)["validation"]["text"]
        for splits in (("train", "validation"), ("validation",))
    ]
    assert held_out[0] == held_out[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_file": ["a.txt"], "dataset_name": "you/texts"}, "--train_file or from --dataset_name, not from both"),
        ({"validation_file": ["a.txt"], "dataset_name": "you/texts"}, "--validation_file or from --dataset_name"),
        ({"train_file": ["a.txt"], "text_column": "body"}, "--text_column is body, which has no effect on txt files"),
        ({"train_file": ["a.csv"], "sample_by": "paragraph"}, "--sample_by is paragraph, .* other than txt"),
        ({"train_file": ["a.txt"], "sample_by": "word"}, "--sample_by is 'word'; it must be one of line, paragraph"),
        (
            {"train_file": ["a.txt"], "dataset_config_name": "en"},
            "--dataset_config_name is en, .*without --dataset_name",
        ),
        ({"dataset_revision": "v1"}, "--dataset_revision is v1, which has no effect without --dataset_name"),
        ({"dataset_name": "you/texts", "builtin_sample": "source"}, "--builtin_sample is source, .* --dataset_name"),
        ({"train_file": ["a.txt"], "builtin_sample": "source"}, "--builtin_sample is source, .*beside --train_file"),
        ({"builtin_sample": "poems"}, "--builtin_sample is 'poems'; it must be one of documentation, source, both"),
        ({"streaming": True}, "--streaming is True, which has no effect on the built-in sample"),
        ({"text_column": "body"}, "--text_column is body, which has no effect on the built-in sample"),
        ({"validation_share": 0.1}, "--validation_share is 0.1, which has no effect on the built-in sample"),
        (
            {"train_file": ["a.txt"], "validation_file": ["a.txt"], "validation_share": 0.1},
            "--validation_share is 0.1, which has no effect beside --validation_file",
        ),
        ({"train_file": ["a.txt"], "validation_share": 1.5}, "--validation_share is 1.5; it must lie between 0 and 1"),
        ({"train_file": ["a.txt"], "shuffle_buffer_size": 5}, "--shuffle_buffer_size is 5, .* without --streaming"),
        (
            {"train_file": ["a.txt"], "streaming": True, "shuffle_buffer_size": 0},
            "--shuffle_buffer_size is 0; it must",
        ),
        ({"train_file": ["a.txt"], "preprocessing_num_workers": 0}, "--preprocessing_num_workers is 0; it must be"),
        (
            {"train_file": ["a.txt"], "streaming": True, "preprocessing_num_workers": 2},
            "--preprocessing_num_workers is 2, which has no effect beside --streaming",
        ),
        ({"train_file": ["a.txt", "a.csv"]}, r"The files end in \.csv, \.txt; all must be of one format"),
    ],
)
def test_options_that_have_no_effect_are_refused_with_both_names(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.txt", "one\ntwo\nthree\n")
    write(tmp_path, "a.csv", "text\none\ntwo\n")
    with pytest.raises(ValueError, match=message):
        load_texts(TextArguments(**options), seed=0)


def test_what_only_the_training_text_or_the_held_out_text_needs_is_refused_without_it(tmp_path):
    file = [write(tmp_path, "a.txt", "one\ntwo\nthree\n")]
    for options in ({"validation_file": file}, {"validation_share": 0.5}, {"max_eval_samples": 1}):
        with pytest.raises(ValueError, match=f"--{next(iter(options))} is .* no effect where all text is read"):
            load_texts(TextArguments(train_file=file, **options), 0, splits=("train",))
    with pytest.raises(ValueError, match="--max_train_samples is 1, which has no effect without --train_file"):
        load_texts(TextArguments(validation_file=file, max_train_samples=1), 0, splits=("validation",))


def test_a_data_set_on_the_hub_keeps_its_own_held_out_text(monkeypatch):
    asked = []

    def serve(path, config, revision, streaming):
        asked.append((path, config, revision, streaming))
        return DatasetDict({split: Dataset.from_dict({"body": [split, " "]}) for split in ("train", "validation")})

    monkeypatch.setattr(texts_module, "load_dataset", serve)
    named = {"dataset_name": "you/texts", "dataset_config_name": "en", "dataset_revision": "v1"}
    texts = load_texts(TextArguments(**named), 0)
    assert asked == [("you/texts", "en", "v1", False)]
    assert {split: list(table["text"]) for split, table in texts.items()} == {s: [s] for s in ("train", "validation")}
    with pytest.raises(ValueError, match="--validation_share is 0.5, which has no effect, because the data set has"):
        load_texts(TextArguments(**named, validation_share=0.5), 0)


INPUTS = Path(__file__).parents[3] / "shared" / "data" / "inputs"


def test_inputs_that_public_reports_suggest_are_refused_or_shuffled():
    if not INPUTS.is_dir():
        pytest.skip("the inputs lie in ../shared/data/inputs beside the repository, which is not there")
    with pytest.raises(ValueError, match=r"latin1.txt: line \d+, byte \d+ of the file is 0x.., which is not UTF-8"):
        load_all(INPUTS / "latin1.txt")
    with pytest.raises(ValueError, match="bad.csv: not readable as csv: line 4: the row has 3 fields"):
        load_all(INPUTS / "bad.csv")
    numbers = [int(text.split()[-1]) for text in load_all(INPUTS / "sorted.txt", streaming=True)]
    assert numbers != sorted(numbers) == list(range(len(numbers)))


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
    assert sorted([*texts["train"]["text"], *texts["validation"]["text"]]) == ["b", "d"]

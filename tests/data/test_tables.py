"""Labelled rows from files: GLUE's own, a user's own, and every way in which a file may be damaged."""

import gzip
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Value
from finetuning_tasks import write

from linformer_hf.data.glue import HUB_NAME, get_task
from linformer_hf.data.labels import (
    MULTI_LABEL,
    REGRESSION,
    SINGLE_LABEL,
    Labels,
    check_variety,
    encode_tables,
    find_problem,
)
from linformer_hf.data.tables import Layout, TableArguments, load_tables, share_rows


NEW_MODEL = Labels(SINGLE_LABEL, ("LABEL_0", "LABEL_1"))


def read(*purposes, task_name=None, **options):
    """Read rows, encode their labels and share them, as a run does."""
    return read_with_labels(*purposes, task_name=task_name, **options)[1]


def read_with_labels(*purposes, task_name=None, model=NEW_MODEL, **options):
    """Read rows, and what their labels stand for."""
    asked = TableArguments(**options)
    task = get_task(task_name) if task_name else None
    if task:
        splits = {"train": task.training, "validation": task.validation, "test": tuple(task.submissions)}
        layout = Layout(
            task.columns, ("label",), splits, task.own_columns, task.own_header, quoted=False, test_labels=False
        )
    else:
        pair = (asked.text_pair_column,) if asked.text_pair_column else ()
        splits = {purpose: (purpose,) for purpose in ("train", "validation", "test")}
        layout = Layout((asked.text_column or "text", *pair), tuple(asked.label_column or ["label"]), splits)
    found = load_tables(asked, layout, purposes, (HUB_NAME, task_name) if task else None)
    known = (task.problem_type, task.labels, task.limits) if task else (asked.problem_type,)
    labels, encoded = encode_tables(found, layout.labels, model, *known)
    most = {"train": asked.max_train_samples, "validation": asked.max_eval_samples, "test": asked.max_predict_samples}
    shared = share_rows(encoded, layout, purposes, 0, asked.validation_share, most)
    if "train" in shared:
        check_variety(list(shared["train"]["labels"]), "train")
    return labels, shared


OWN_FILES = {
    "cola": (
        ['gj04\t1\t\tHe said "no.', "gj04\t0\t*\tNA"],
        {"sentence": ['He said "no.', "NA"]},
        [1, 0],
    ),
    "sst2": (["sentence\tlabel", "a good film \t1", "null \t0"], {"sentence": ["a good film ", "null "]}, [1, 0]),
    "mrpc": (
        ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", '1\t7\t8\t"We win\tWe won', "0\t7\t9\tA\tB"],
        {"sentence1": ['"We win', "A"], "sentence2": ["We won", "B"]},
        [1, 0],
    ),
    "stsb": (
        [
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
            "0\tmain\tMSR\t2012\t1\tnone\tnone\tA plane.\tAn air plane.\t5.000",
            "1\tmain\tMSR\t2012\t4\tnone\tnone\tA man.\tA flute.\t0.250",
        ],
        {"sentence1": ["A plane.", "A man."], "sentence2": ["An air plane.", "A flute."]},
        [5.0, 0.25],
    ),
    "qqp": (
        ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "3\t4\t5\tWhy?\tNone\t0", "4\t6\t7\tWho?\tWhom?\t1"],
        {"question1": ["Why?", "Who?"], "question2": ["None", "Whom?"]},
        [0, 1],
    ),
    "mnli": (
        [
            "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label",
            "0\tfiction\tIt rains.\tIt is dry.\tneutral\tcontradiction",
            "1\tfiction\tIt rains.\tIt is wet.\tentailment\tentailment",
        ],
        {"premise": ["It rains."] * 2, "hypothesis": ["It is dry.", "It is wet."]},
        [2, 0],
    ),
    "qnli": (
        ["index\tquestion\tsentence\tlabel", "0\tWhen?\tNow.\tentailment", "1\tWhere?\tNow.\tnot_entailment"],
        {"question": ["When?", "Where?"], "sentence": ["Now."] * 2},
        [0, 1],
    ),
    "rte": (
        ["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\tnot_entailment", "1\tA.\tA.\tentailment"],
        {"sentence1": ["A."] * 2, "sentence2": ["B.", "A."]},
        [1, 0],
    ),
    "wnli": (
        ["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\t1", "1\tA.\tA.\t0"],
        {"sentence1": ["A."] * 2, "sentence2": ["B.", "A."]},
        [1, 0],
    ),
}


@pytest.mark.parametrize("name", OWN_FILES)
def test_the_files_that_glue_itself_ships_are_read(tmp_path, name):
    lines, texts, labels = OWN_FILES[name]
    file = tmp_path / "train.tsv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = read("train", task_name=name, train_file=[str(file)])["train"]
    assert {column: list(found[column]) for column in texts} == texts
    assert list(found["labels"]) == labels


def test_broken_rows_of_glues_own_files_are_left_out_and_counted(tmp_path, caplog):
    file = tmp_path / "train.tsv"
    rows = ["id\tquestion1\tquestion2\tis_duplicate", "0\tWho?\tWhich?\t1", "1\tWhy", "2\tWhat?\tWhen?\t0"]
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    with caplog.at_level("WARNING", logger="linformer_hf"):
        found = read("train", task_name="qqp", train_file=[str(file)])["train"]
    assert list(found["question1"]) == ["Who?", "What?"]
    assert "fields of the first are left out: 1, the first of them in line 3." in caplog.text


def test_the_test_file_of_cola_has_a_header_where_the_others_have_none(tmp_path):
    train, test = tmp_path / "train.tsv", tmp_path / "test.tsv"
    train.write_text("gj04\t1\t\tShe sang.\ngj04\t0\t*\tShe sung.\n", encoding="utf-8")
    test.write_text("index\tsentence\n0\tHe sang.\n", encoding="utf-8")
    found = read("train", "test", task_name="cola", train_file=[str(train)], test_file=[str(test)])
    assert list(found["train"]["sentence"]) == ["She sang.", "She sung."]
    assert list(found["test"]["sentence"]) == ["He sang."]


def test_more_files_than_a_task_has_splits_are_refused(tmp_path):
    lines, _, _ = OWN_FILES["mnli"]
    files = [str(tmp_path / f"{name}.tsv") for name in "abc"]
    for file in files:
        Path(file).write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ValueError, match="--validation_file names 3 files for the splits validation_matched, validat"):
        read("train", "validation", task_name="mnli", train_file=files[:1], validation_file=files)


GOOD = [{"text": "good film", "label": "praise"}, {"text": "bad film", "label": "blame"}]


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (GOOD, {"task_name": "imdb"}, "'imdb' is no GLUE task; choose one of cola"),
        (GOOD, {"train_file": ["nowhere.csv"]}, "nowhere.csv: there is no such file"),
        (GOOD, {"train_file": None}, "No rows are named: give --task_name"),
        (GOOD, {"dataset_name": "you/rows"}, "Rows come from --train_file or from --dataset_name, not from both"),
        (GOOD, {"text_column": "review"}, "no column 'review', only text, label; .*--text_column"),
        (GOOD, {"text_pair_column": "reply"}, "no column 'reply', only text, label"),
        (GOOD, {"label_column": ["stars"]}, "no column 'stars', only text, label"),
        (GOOD, {"problem_type": "ranking"}, "'ranking'; it must be one of single_label"),
        (GOOD, {"problem_type": "multi_label_classification"}, "--label_column label holds one label a row"),
        (GOOD, {"problem_type": "regression"}, "Row 0 for train: .*'praise'"),
        (GOOD, {"validation_share": 0.0, "validation_file": None}, "--validation_share is 0.0.*--validation_file"),
        (GOOD, {"validation_share": 0.5}, "--validation_share is 0.5, which has no effect beside --validation_file"),
        (GOOD, {"dataset_revision": "v1"}, "--dataset_revision is v1, which has no effect without --dataset_name"),
        (GOOD, {"dataset_config_name": "en"}, "--dataset_config_name is en, .* without --dataset_name"),
        (GOOD, {"max_predict_samples": 1}, "--max_predict_samples has no effect without --do_predict"),
        (GOOD, {"test_file": ["rows.csv"]}, "--test_file has no effect without --do_predict"),
        (GOOD, {"max_train_samples": 0}, "--max_train_samples is 0; it must be at least 1"),
        (GOOD, {"max_eval_samples": -5}, "--max_eval_samples is -5; it must be at least 1"),
        (GOOD[:1] * 3, {}, "All 3 rows for train have the same label"),
        ([*GOOD, {"text": "film", "label": ""}], {}, "1 of 3 rows for train have no label, the first of them row 2"),
        ([*GOOD, {"text": "film", "label": " "}], {}, "1 of 3 rows for train have no label"),
        (
            [{"text": "good", "label": 1.5}, {"text": "bad", "label": "NaN"}],
            {},
            "1 of 2 rows for train have no label, the first of them row 1",
        ),
        (
            [{"text": "good", "label": 1.5}, {"text": "bad", "label": "inf"}],
            {},
            "Row 1 for train: the label inf must be a finite number",
        ),
        (
            [{"sentence": "good", "label": 2}, {"sentence": "bad", "label": 0}],
            {"task_name": "sst2"},
            "Row 0 for train: the label '2' is none of negative, positive, nor a number from 0 to 1",
        ),
        (
            [{"sentence1": "a", "sentence2": "b", "label": 6.0}, {"sentence1": "a", "sentence2": "b", "label": 0}],
            {"task_name": "stsb"},
            "Row 0 for train: the label 6.0 must be a finite number from 0.0 to 5.0",
        ),
        (
            [{"sentence": "good", "label": -1}, {"sentence": "bad", "label": 0}],
            {"task_name": "cola"},
            "1 of 2 rows for train have no label",
        ),
        (
            [{"text": "good", "a": 1, "b": 0}, {"text": "bad", "a": 0, "b": 2}],
            {"label_column": ["a", "b"]},
            "Row 1 for train: several label columns hold 0 or 1, not '2' in 'b'",
        ),
    ],
)
def test_rows_and_options_that_do_not_fit_are_refused(tmp_path, monkeypatch, rows, changes, message):
    monkeypatch.chdir(tmp_path)
    file = [write(tmp_path / "rows.csv", rows)]
    options = {"train_file": file, "validation_file": file, **changes}
    if options["train_file"] is None:
        del options["validation_file"]
    with pytest.raises(ValueError, match=message):
        read("train", "validation", **options)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", b"", "the file is empty"),
        ("header.csv", b"text,label\n", "header.csv: there are no rows in it"),
        ("more.csv", b"text,label\na,1\nb,2,3,4\n", "line 3: the row has 4 fields, the header has 2.*commas"),
        ("fewer.csv", b"text,label\na,1\nb\n", "line 3: the row has 1 fields, the header has 2"),
        ("trail.csv", b"id,text,label\n0,a film,bad,\n1,a plot,good,\n", "line 2: the row has 4 fields, the header"),
        ("blank.csv", b"text,label\na,1\n\nb,2\n", "line 3 is empty, and rows follow it"),
        ("late.csv", b'text,label\n"a\nb",1\nc,2,3\n', "line 4: the row has 3 fields"),
        ("open.csv", b'text,label\na,1\n"b,2\nc,1\n', "the row that starts in line 3: unexpected end of data"),
        ("quote.csv", b'text,label\n"a" b,1\n', "the row that starts in line 2.*written twice"),
        ("twice.csv", b"text,text,label\na,b,1\n", "two columns with the name 'text'"),
        (
            "latin.csv",
            "text,label\na,1\nGr\u00f6\u00dfe,2\n".encode("latin-1"),
            "line 3, byte 17 .* 0xf6.*not UTF-8.*iconv",
        ),
        ("half.json", b'{"text": "a", "lab', "half.json: not readable as json: line 1, column"),
        ("half.jsonl", b'{"text": "a", "label": "b"}\n{"text": "a", "lab\n', "not readable as json: line 2, column"),
        ("list.jsonl", b'{"text": "a", "label": "b"}\n["a"]\n', "line 2 holds no JSON object"),
        ("pair.jsonl", b'{"text": "\\ud83d", "label": "b"}\n', "line 1 holds half of a surrogate pair"),
        ("text.jsonl", b'{"text": 7, "label": "b"}\n', "text.jsonl: line 1: the column 'text' holds no text: 7"),
        ("label.jsonl", b'{"text": "a", "label": {"b": 1}}\n', "line 1: the label .* is no name, number or list"),
        ("half.parquet", b"PAR1", "half.parquet: not readable as parquet"),
        ("half.csv.gz", gzip.compress(b"text,label\na,1\n", mtime=0)[:-9], "half.csv.gz: not readable as gzip"),
        ("false.csv.gz", b"text,label\na,1\n", "false.csv.gz: not readable as gzip"),
        ("notes.txt", b"good", "labelled rows come in one format among .csv, .tsv"),
    ],
)
def test_files_that_hold_no_table_are_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as refusal:
        read("train", train_file=[str(tmp_path / name)])
    assert "\n" not in str(refusal.value)


def test_labels_that_only_the_validation_rows_have_are_refused(tmp_path):
    train = write(tmp_path / "train.csv", GOOD)
    validation = write(tmp_path / "validation.csv", [*GOOD, {"text": "film", "label": "shrug"}])
    with pytest.raises(ValueError, match="rows for validation have labels that are not known from training: shrug"):
        read("train", "validation", train_file=[train], validation_file=[validation])


def test_a_column_of_numbers_in_a_typed_file_holds_no_text(tmp_path):
    file = write(tmp_path / "rows.parquet", [{"text": 1, "label": 1}, {"text": 2, "label": 0}])
    with pytest.raises(ValueError, match="column 'text' of the rows for train holds no text"):
        read("train", train_file=[file])


@pytest.mark.parametrize("suffix", ["csv", "tsv", "json", "jsonl"])
@pytest.mark.parametrize(
    "names",
    [["007", "012", "13"], ["NA", "ZA", "nan"], ["1", "2", "NULL"], ["True", "false", "[b]"], [" a", "a ", "a"]],
)
def test_labels_are_read_as_they_are_written(tmp_path, suffix, names):
    file = write(tmp_path / f"rows.{suffix}", [{"text": "good film", "label": name} for name in names * 2])
    labels, tables = read_with_labels("train", train_file=[file])
    assert labels == Labels(SINGLE_LABEL, tuple(sorted(names)))
    assert [labels.names[number] for number in tables["train"]["labels"]] == names * 2


def test_numbers_of_json_keep_their_spelling_as_labels(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a", "label": 1}\n{"text": "b", "label": 10}\n{"text": "c", "label": "x"}\n')
    assert read_with_labels("train", train_file=[str(file)])[0].names == ("1", "10", "x")


def test_a_typed_column_of_class_labels_keeps_its_names_from_a_parquet_file(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features).to_parquet(tmp_path / "rows.parquet")
    labels, tables = read_with_labels("train", train_file=[str(tmp_path / "rows.parquet")])
    assert (labels.names, list(tables["train"]["labels"])) == (("neg", "pos"), [1, 0])


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (["1", "2", "10"], SINGLE_LABEL),
        (["1.5", "2", "10"], REGRESSION),
        (["1.0", "2.0"], REGRESSION),
        (["1e-3", "-.5", "", "NaN"], REGRESSION),
        (["1"] * 5000 + ["1.5"], REGRESSION),
        (["1.5"] * 5000 + ["v2"], SINGLE_LABEL),
        (["1_0", "1.5"], SINGLE_LABEL),
        (["['a', 'b']", "[]", '["it\'s"]'], MULTI_LABEL),
        ([["a"], []], MULTI_LABEL),
    ],
)
def test_what_is_asked_for_is_told_from_all_rows(column, problem):
    assert find_problem(Dataset.from_dict({"label": column}), ["label"]) == problem


def test_printed_lists_are_several_labels(tmp_path):
    found = [["b"], ["a", "b"], [], ["it's"]]
    file = write(tmp_path / "rows.csv", [{"text": "good", "label": str(names)} for names in found])
    labels, tables = read_with_labels("train", train_file=[file])
    assert labels == Labels(MULTI_LABEL, ("a", "b", "it's"))
    assert list(tables["train"]["labels"]) == [[0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (["['a']", "b"], "row 0 holds a printed list of labels and row 1 does not"),
        (["['a' 'b']", "['b']"], "Row 0, column 'label': .*not readable as one: write"),
        (["['a', 'b'", "['b']"], "Row 0, column 'label': .*not readable as one"),
    ],
)
def test_what_only_looks_like_lists_is_refused_with_the_reason(tmp_path, column, message):
    file = write(tmp_path / "rows.csv", [{"text": "good", "label": label} for label in column])
    with pytest.raises(ValueError, match=message):
        read("train", train_file=[file])


def test_columns_of_zero_and_one_are_several_labels(tmp_path):
    rows = [{"text": "good", "a": "1", "b": "False"}, {"text": "bad", "a": "0.0", "b": "1.0"}]
    labels, tables = read_with_labels(
        "train", train_file=[write(tmp_path / "rows.csv", rows)], label_column=["a", "b"]
    )
    assert (labels.names, list(tables["train"]["labels"])) == (("a", "b"), [[1.0, 0.0], [0.0, 1.0]])


def test_a_blank_label_column_at_prediction_is_no_label(tmp_path):
    file = write(tmp_path / "rows.csv", [{"text": "good", "label": ""}, {"text": "bad", "label": " "}])
    model = Labels(SINGLE_LABEL, ("blame", "praise"))
    labels, tables = read_with_labels("test", test_file=[file], model=model)
    assert (labels, tables["test"].column_names) == (model, ["text"])


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_csv_file_may_be_separated_by_something_else(tmp_path, separator):
    file = tmp_path / "rows.csv"
    file.write_text(f"text{separator}label\nwell, well{separator}good\nno{separator}bad\n")
    assert list(read("train", train_file=[str(file)])["train"]["text"]) == ["well, well", "no"]


def test_every_character_of_a_text_is_kept(tmp_path):
    texts = [
        'She said "no".',
        "two\nlines",
        "cr\r\nlf",
        "a, b",
        "\ttab",
        "#hash",
        "NA",
        "",
        " blank ",
        "'",
        "x" * 200_000,
    ]
    file = write(tmp_path / "rows.csv", [{"text": text, "label": row % 2} for row, text in enumerate(texts)])
    assert list(read("train", train_file=[file])["train"]["text"]) == texts


def test_an_index_column_without_a_name_is_left_out(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text(",text,label\n0,good,a\n1,bad,b\n")
    assert list(read("train", train_file=[str(file)])["train"]["text"]) == ["good", "bad"]


@pytest.mark.parametrize("name", ["rows.csv.gz", "rows.CSV", "rows[1].csv", "ROWS.TSV.GZ", "rows.jsonl.gz"])
def test_compressed_files_capitals_brackets_and_a_byte_order_mark_are_read(tmp_path, name):
    if "json" in name:
        content = '{"text": "Größe", "label": "a"}\n{"text": "b", "label": "b"}\n'
    else:
        content = "text,label\nGröße,a\nb,b\n".replace(",", "\t" if "TSV" in name else ",")
    content = content.encode("utf-8-sig")
    (tmp_path / name).write_bytes(gzip.compress(content, mtime=0) if name.lower().endswith(".gz") else content)
    write(tmp_path / "rows1.csv", [{"text": "other", "label": "c"}])  # what the brackets would stand for in a pattern
    assert list(read("train", train_file=[str(tmp_path / name)])["train"]["text"]) == ["Größe", "b"]


def test_a_column_that_is_called_labels_may_hold_the_text(tmp_path):
    file = write(tmp_path / "rows.csv", [{"labels": "good", "label": "a"}, {"labels": "bad", "label": "b"}])
    found = read("train", train_file=[file], text_column="labels")["train"]
    assert found.column_names == ["labels (text)", "labels"]
    assert (list(found["labels (text)"]), list(found["labels"])) == (["good", "bad"], [0, 1])


INPUTS = Path(__file__).parents[3] / "shared" / "data" / "inputs"


@pytest.mark.parametrize(
    ("name", "column", "names"),
    [
        ("zeros.csv", "code", ("007", "012")),
        ("country.csv", "country", ("NA", "ZA")),
        ("semi.csv", "label", ("bad", "good")),
        ("strlist.csv", "label", ("a", "b")),
        ("trail.csv", "label", "line 2: the row has 4 fields, the header has 3"),
        ("bad.csv", "label", "line 4: the row has 3 fields, the header has 1"),
    ],
)
def test_inputs_that_public_reports_suggest_are_read_or_refused(name, column, names):
    if not INPUTS.is_dir():
        pytest.skip("the inputs lie in ../shared/data/inputs beside the repository, which is not there")
    options = {"train_file": [str(INPUTS / name)], "label_column": [column]}
    if isinstance(names, str):
        with pytest.raises(ValueError, match=names):
            read("train", **options)
    else:
        assert read_with_labels("train", **options)[0].names == names

"""Labelled rows from files: GLUE's own, a user's own, and every way in which a file may be damaged."""

import csv
import json
from pathlib import Path

import pytest
from datasets import Dataset

from linformer_hf.data.labels import SINGLE, Labels
from linformer_hf.training import finetuning
from linformer_hf.training.finetuning import FinetuningArguments


def write(file, rows):
    """Write rows as the name of the file asks."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows), encoding="utf-8")
    elif file.suffix == ".parquet":
        Dataset.from_list(rows).to_parquet(file)
    else:
        with open(file, "w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, list(rows[0]), delimiter="\t" if file.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return str(file)


def read(*purposes, **options):
    """Read rows and encode their labels, as a run does."""
    asked = FinetuningArguments(model_name_or_path="unused", **options)
    task = finetuning.get_task(asked.task_name) if asked.task_name else None
    layout = finetuning.layout_of(asked, task)
    found = finetuning.load_rows(asked, layout, purposes)
    model = Labels(SINGLE, ("LABEL_0", "LABEL_1"))
    known = (task.problem_type, task.labels, task.limits) if task else (asked.problem_type,)
    labels, encoded = finetuning.encode_tables(found, layout.labels, model, *known)
    encoded = finetuning.share_rows(encoded, asked, layout, purposes, 0)
    finetuning.report_rows(encoded, labels, layout)
    return encoded


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
        (GOOD, {"dataset_name": "you/rows"}, "from files or from --dataset_name, not from both"),
        (GOOD, {"text_column": "review"}, "no column 'review', only text, label; .*--text_column"),
        (GOOD, {"text_pair_column": "reply"}, "no column 'reply', only text, label"),
        (GOOD, {"label_column": ["stars"]}, "no column 'stars', only text, label"),
        (GOOD, {"problem_type": "ranking"}, "'ranking'; it must be one of single_label"),
        (GOOD, {"problem_type": "multi_label_classification"}, "--label_column label holds one label a row"),
        (GOOD, {"problem_type": "regression"}, "Row 0 for train: .*'praise'"),
        (GOOD, {"validation_share": 0.0, "validation_file": None}, "--validation_share is 0.0.*--validation_file"),
        (GOOD[:1] * 3, {}, "All 3 rows for train have the same label"),
        ([*GOOD, {"text": "film", "label": ""}], {}, "1 of 3 rows for train have no label, the first of them row 2"),
        ([*GOOD, {"text": "film", "label": "nan"}], {}, "1 of 3 rows for train have no label"),
        ([{"text": 1, "label": 1}, {"text": 2, "label": 0}], {}, "column 'text' of the rows for train holds no text"),
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
            "Row 0 for train: the label 2 is none of negative, positive, nor a number from 0 to 1",
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
            "Row 1 for train: several label columns hold 0 or 1, not 2 in 'b'",
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
        ("empty.csv", "", "the file is empty"),
        ("header.csv", "text,label\n", "header.csv"),
        ("ragged.csv", "text,label\na,1\nb,2,3,4\n", "not readable as csv: .*line 3"),
        ("half.json", '{"text": "a", "lab', "not readable as json"),
        ("half.parquet", "PAR1", "not readable as parquet"),
        ("notes.txt", "good", "labelled rows come in one format among .csv, .tsv"),
    ],
)
def test_files_that_hold_no_table_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read("train", train_file=[str(tmp_path / name)])


def test_labels_that_only_the_validation_rows_have_are_refused(tmp_path):
    train = write(tmp_path / "train.csv", GOOD)
    validation = write(tmp_path / "validation.csv", [*GOOD, {"text": "film", "label": "shrug"}])
    with pytest.raises(ValueError, match="rows for validation have labels that are not known from training: shrug"):
        read("train", "validation", train_file=[train], validation_file=[validation])

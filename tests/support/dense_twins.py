"""A small BERT with text and tokenizer, and the Linformer that is made from it."""

from conftest import enliven
from transformers import BertConfig

from linformer_hf.conversion.convert import convert_model
from linformer_hf.data.tokenizers import train_tokenizer


LINES = [
    f"The {animal} of house {number} is {colour}, sleeps at {hour} and dreams of {number + hour} boats."
    for number in range(60)
    for hour, (animal, colour) in enumerate({"cat": "black", "dog": "brown", "owl": "white", "fox": "red"}.items())
]
DOCUMENTS = [" ".join(LINES[start : start + 4]) for start in range(0, len(LINES), 4)]


def make_tokenizer():
    return train_tokenizer(DOCUMENTS, vocab_size=320, max_length=32)


def make_dense(dense_class, tokenizer, **fields):
    """Build a BERT of two layers that reads 32 tokens."""
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    shape |= {"vocab_size": len(tokenizer), "max_position_embeddings": 32, "pad_token_id": tokenizer.pad_token_id}
    shape |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return enliven(dense_class(BertConfig(**{**shape, **fields}))).eval()


def make_linformer(dense, max_position_embeddings=32, projected_length=8):
    """Make the Linformer whose slots are means of windows."""
    return convert_model(dense, max_position_embeddings, projected_length, projection_start="window")[0]


def save(model, tokenizer, folder):
    """Save both, and return the folder as a command line names it."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)

"""What the tests share: the offline switch, one tolerance for each dtype, and tiny models without a weight at rest."""

import os


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest  # noqa: E402  (the switches above must be set before transformers is imported)
import torch  # noqa: E402

from linformer_hf import LinformerConfig, LinformerModel  # noqa: E402


# on tensors this small a second thread costs more in waiting than it saves, ten times more on a busy machine
torch.set_num_threads(1)

TOLERANCES = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-10},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 0.0, "atol": 3e-2},
    torch.float16: {"rtol": 0.0, "atol": 3e-2},
}
LOSS_TOLERANCE = 1e-3  # relative, of a loss that a Trainer has rounded and logged

TYPES = ("linear", "mean_pool", "max_pool", "conv")
SHARINGS = ("none", "headwise", "key_value", "layerwise")
KINDS = [(projection_type, sharing) for projection_type in TYPES for sharing in SHARINGS]
LEARNED_KINDS = [kind for kind in KINDS if kind[0] in ("linear", "conv")]

FIRST_WORD, VOCABULARY = 3, 61  # ids below the first word are special: 0 starts, 1 pads, 2 ends


def for_kinds(kinds):
    """Run a test once for each projection type and sharing mode."""
    ids = ["-".join(kind) for kind in kinds]
    return pytest.mark.parametrize(("projection_type", "projection_sharing"), kinds, ids=ids)


def assert_close(actual, expected, dtype=None, what=""):
    """Compare at the tolerance of the dtype: that of `expected`, or the lower one that `actual` was computed in."""
    tolerance = TOLERANCES[dtype or expected.dtype]
    message = (lambda text: f"{what}: {text}") if what else None
    torch.testing.assert_close(actual.to(expected.dtype), expected, **tolerance, msg=message)


def assert_same_tensors(actual, expected, dtype=None, what=""):
    """Compare two dictionaries of tensors: the same names, and values as `assert_close` does."""
    assert sorted(actual) == sorted(expected)
    for name, tensor in expected.items():
        assert_close(actual[name], tensor, dtype, f"{what} {name}".strip())


def tiny_config(**fields):
    """Describe a small encoder without dropout: n = 32, k = 8, two layers, two heads of width 8."""
    defaults = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 32,
        "projected_length": 8,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return LinformerConfig(**{**defaults, **fields})


def enliven(model, seed=0):
    """Draw every weight, biases and the padding word included, so that no term of the equations is zero or one."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        if weight.dim() == 1:
            noise = 0.3 * noise + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0)
        elif "embeddings" not in name:
            noise = noise * weight.shape[-1] ** -0.5
        weight.data.copy_(noise)
    return model


def tiny_model(model_class=LinformerModel, dtype=torch.float64, **fields):
    """Build a small model, every weight drawn, in evaluation mode."""
    return enliven(model_class(tiny_config(**fields))).to(dtype).eval()


def random_ids(*shape, seed=0):
    """Draw words; no special token is among them."""
    return torch.randint(FIRST_WORD, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def random_like(tensor, seed=0):
    """Draw numbers for each entry of a tensor, to weigh it in a sum and so send different gradients everywhere."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)


def gradients(model):
    """Copy the gradient of every parameter that has one."""
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}

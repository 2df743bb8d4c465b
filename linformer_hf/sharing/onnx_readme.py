"""The README of an exported folder: inputs, outputs, and five lines of Python that run the model."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from ..modeling_linformer import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerPreTrainedModel,
)


MODEL, QUANTIZED = "model.onnx", "model_quantized.onnx"

# inputs of an exported model, and the attribute of the tokenizers library that holds each
ENCODED = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
OUTPUTS = {
    "last_hidden_state": "a vector for each token",
    "logits": "a score for each token of the vocabulary, each label or each choice, depending on the head",
    "start_logits": "for each token, a score of the answer starting there",
    "end_logits": "for each token, a score of the answer ending there",
}
README = """\
# A Linformer for onnxruntime

`{head}` with n = {longest}, k = {projected_length}, projection `{projection_type}`, sharing `{projection_sharing}`.
Five lines run it in this folder, without PyTorch (`pip install onnxruntime tokenizers`):

```python
{code}
```

| output | shape | meaning |
| --- | --- | --- |
{outputs}

- Inputs are 64-bit integers, of any batch size and of 1 to {longest} tokens. In `attention_mask`, 1 is a token and 0
  is padding, at any position.
- `tokenizer.json` truncates texts to {longest} tokens. A longer input is refused: onnxruntime raises an error at a
  `Mul` node, where the mask is multiplied by a row of {longest} ones.
- On random input of 1, 9 and {longest} tokens, with and without padding, the outputs differ from PyTorch's by at most
  {difference:.0e}.
{quantized}"""
QUANTIZED_NOTE = f"- `{QUANTIZED}` is the same model with 8-bit weights: smaller, and slightly less exact.\n"


def input_names(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the inputs of the exported model; token types are one where the tokenizer makes them."""
    return [name for name in ENCODED if name != "token_type_ids" or name in tokenizer.model_input_names]


def render_readme(
    model: LinformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    outputs: Mapping[str, Sequence[int | str]],
    difference: float,
    quantized: bool,
) -> str:
    """Render the README of an exported folder.

    Args:
        model: What was exported.
        tokenizer: Its tokenizer.
        outputs: The shape of each output, as the file names it.
        difference: The largest difference from torch.
        quantized: Whether there is a file with 8-bit weights.
    """
    rows = [f"| `{name}` | {' × '.join(map(str, shape))} | {OUTPUTS[name]} |" for name, shape in outputs.items()]
    return README.format(
        head=type(model).__name__,
        longest=model.config.max_position_embeddings,
        projected_length=model.config.projected_length,
        projection_type=model.config.projection_type,
        projection_sharing=model.config.projection_sharing,
        code=example_code(model, tokenizer),
        outputs="\n".join(rows),
        difference=difference,
        quantized=QUANTIZED_NOTE if quantized else "",
    )


def example_code(model: LinformerPreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Write five lines that run an exported model on texts that suit its head."""
    texts = ["The boat is on the river.", "Two bridges cross it."]
    if isinstance(model, LinformerForMaskedLM) and tokenizer.mask_token:
        texts = [f"The boat is on the {tokenizer.mask_token}.", f"Two {tokenizer.mask_token} cross it."]
    elif isinstance(model, LinformerForMultipleChoice):
        texts = [("The bridge is closed.", "We take the boat."), ("The bridge is closed.", "It is a bridge.")]
    elif isinstance(model, LinformerForQuestionAnswering):
        texts = [("Where is the boat?", "The boat is on the river.")]
    rows = "[[{}]]" if isinstance(model, LinformerForMultipleChoice) else "[{}]"
    feeds = [f'"{name}": ' + rows.format(f"text.{ENCODED[name]} for text in texts") for name in input_names(tokenizer)]
    return "\n".join(
        (
            "import onnxruntime, tokenizers",
            'session = onnxruntime.InferenceSession("model.onnx")',
            'tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")',
            f"texts = tokenizer.encode_batch({texts})",
            f"outputs = session.run(None, {{{', '.join(feeds)}}})",
        )
    )

"""Push a small Linformer with its tokenizer, by itself and from the Trainer."""

import json
import sys

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast, Trainer, TrainingArguments

from linformer_hf import LinformerConfig, LinformerForMaskedLM


words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "c"]
rules = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
rules.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=rules,
    bos_token="<s>",
    pad_token="<pad>",
    eos_token="</s>",
    unk_token="<unk>",
    mask_token="<mask>",
)
config = LinformerConfig(
    vocab_size=8,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    projected_length=4,
)
model = LinformerForMaskedLM(config).eval()
model.push_to_hub("owner/tiny")
tokenizer.push_to_hub("owner/tiny")
logits = model(**tokenizer("a b c", return_tensors="pt")).logits
arguments = TrainingArguments(
    output_dir="run",
    max_steps=2,
    save_steps=1,
    per_device_train_batch_size=2,
    report_to="none",
    use_cpu=True,
    push_to_hub=True,
    hub_model_id="owner/trained",
    hub_strategy="every_save",
)
rows = Dataset.from_dict({"input_ids": [[0, 5, 6, 7, 2]] * 4})
collator = DataCollatorForLanguageModeling(tokenizer)
trainer = Trainer(model, arguments, collator, rows, processing_class=tokenizer)
trainer.train()
trainer.push_to_hub()
trained = model.cpu().eval()(**tokenizer("a b c", return_tensors="pt")).logits
json.dump([logits.tolist(), trained.tolist()], sys.stdout)

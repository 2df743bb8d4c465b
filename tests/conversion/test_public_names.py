"""What a user of the library imports, and what that loads."""

import subprocess
import sys


def test_converting_a_model_in_memory_loads_no_extra():
    code = (
        "import sys, torch, transformers\n"
        "from linformer_hf import change_projected_length, convert_model\n"
        "sizes = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)\n"
        "dense = transformers.BertModel(transformers.BertConfig(**sizes, max_position_embeddings=16))\n"
        "model, report = convert_model(dense, projected_length=4)\n"
        "change_projected_length(model, 8)\n"
        "assert model(torch.ones(1, 16, dtype=torch.long)).last_hidden_state.shape == (1, 16, 8)\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'datasets', 'matplotlib', 'gradio', 'onnx', 'evaluate', 'pandas'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"

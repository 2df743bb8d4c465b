"""What the Hub files take from transformers: a short list, so that another version of it is soon checked."""

import ast
from pathlib import Path

import linformer_hf


# names by module; the last two modules are not public, and stand in every model of transformers 5.4 and later
NAMES = {
    "transformers": {"PreTrainedConfig", "PreTrainedModel", "initialization"},
    "transformers.activations": {"ACT2FN"},
    "transformers.modeling_layers": {"GradientCheckpointingLayer"},
    "transformers.modeling_outputs": {
        "BaseModelOutput",
        "MaskedLMOutput",
        "MultipleChoiceModelOutput",
        "QuestionAnsweringModelOutput",
        "SequenceClassifierOutput",
        "TokenClassifierOutput",
    },
    "transformers.modeling_utils": {"ALL_ATTENTION_FUNCTIONS"},
    "transformers.processing_utils": {"Unpack"},
    "transformers.utils": {"TransformersKwargs", "can_return_tuple", "logging"},
    "transformers.utils.generic": {"merge_with_config_defaults"},
    "transformers.utils.output_capturing": {"capture_outputs"},
}


def test_hub_files_take_only_the_names_of_the_list_from_the_host():
    found = {}
    for name in ("configuration_linformer.py", "modeling_linformer.py"):
        tree = ast.parse((Path(linformer_hf.__file__).parent / name).read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module.startswith("transformers"):
                found.setdefault(node.module, set()).update(alias.name for alias in node.names)
    assert found == NAMES

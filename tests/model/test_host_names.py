"""The names that the Hub files import from transformers: a short list, which is checked for each new version.

Tried with a model of each class (loss, gradients, saving, loading, attention maps, gradient checkpointing): all works
with transformers 5.4.0, 5.12.0 and 5.24.0, the newest at the time, while 5.0.0, 5.2.0 and 5.3.0 cannot import the
configuration, because their `PreTrainedConfig` is no dataclass (StrictDataclassDefinitionError), and 5.0.0 also lacks
`utils.output_capturing`. The declared bound stays at 5.24, the only version that the whole suite is run with.
"""

import ast
from pathlib import Path

import linformer_hf


# Names by module. The last module is not public, but the models in transformers import it, since 5.2.
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
    "transformers.utils.output_capturing": {"capture_outputs"},
}


def test_hub_files_import_only_the_listed_names_from_transformers():
    found = {}
    for name in ("configuration_linformer.py", "modeling_linformer.py"):
        tree = ast.parse((Path(linformer_hf.__file__).parent / name).read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module.startswith("transformers"):
                found.setdefault(node.module, set()).update(alias.name for alias in node.names)
    assert found == NAMES

"""Linformer for Hugging Face Transformers: encoders whose attention costs n x k instead of n x n.

Importing the package registers the model family with the Auto classes, so that `AutoModel.from_pretrained` and its
relatives load Linformer checkpoints without `trust_remote_code`.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from .common.lazy import export_lazily
from .configuration_linformer import VERSION as __version__
from .configuration_linformer import LinformerConfig
from .modeling_linformer import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
    LinformerPreTrainedModel,
)


AutoConfig.register("linformer", LinformerConfig, exist_ok=True)
LinformerConfig.register_for_auto_class()
for auto_class, model_class in (
    (AutoModelForPreTraining, LinformerForMaskedLM),
    (AutoModel, LinformerModel),
    (AutoModelForMaskedLM, LinformerForMaskedLM),
    (AutoModelForSequenceClassification, LinformerForSequenceClassification),
    (AutoModelForTokenClassification, LinformerForTokenClassification),
    (AutoModelForQuestionAnswering, LinformerForQuestionAnswering),
    (AutoModelForMultipleChoice, LinformerForMultipleChoice),
):
    auto_class.register(LinformerConfig, model_class, exist_ok=True)
    # a saved checkpoint then carries the two files that define it, and loads where this package is missing
    model_class.register_for_auto_class(auto_class.__name__)

# imported when they are used, so that importing the package loads no extra
__getattr__, __dir__, tools = export_lazily(
    __name__,
    {
        "analysis.spectrum": ["SpectrumArguments", "analyze_spectrum"],
        "benchmark.efficiency": ["EfficiencyArguments", "measure_efficiency"],
        "conversion.checkpoint_conversion": ["ConversionArguments", "convert_checkpoint", "convert_pretrained"],
        "conversion.checkpoint_resizing": ["ResizingArguments", "resize_checkpoint"],
        "conversion.comparison": ["ComparisonArguments", "compare", "compare_models"],
        "conversion.convert": ["convert_model"],
        "conversion.projections": ["change_projected_length"],
        "explorer.page": ["ExplorerArguments", "explore"],
        "sharing.hub": ["PushArguments", "push", "save_for_hub"],
        "sharing.onnx_export": ["ExportArguments", "export_checkpoint", "export_onnx"],
        "training.distillation": ["DistillationArguments", "distill"],
        "training.finetuning": ["FinetuningArguments", "finetune"],
        "training.pretraining": ["PretrainingArguments", "pretrain"],
        "training.run_tables": ["RunTableArguments", "tabulate_runs"],
        "training.teaching": ["teach"],
    },
)

__all__ = [
    "LinformerConfig",
    "LinformerForMaskedLM",
    "LinformerForMultipleChoice",
    "LinformerForQuestionAnswering",
    "LinformerForSequenceClassification",
    "LinformerForTokenClassification",
    "LinformerModel",
    "LinformerPreTrainedModel",
    "__version__",
    *tools,
]

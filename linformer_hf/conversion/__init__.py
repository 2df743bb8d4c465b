"""A dense encoder becomes a Linformer; n and k change; the two are compared."""

from ..common.lazy import export_lazily


__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "convert": ["ConversionArguments", "ConversionReport", "convert_checkpoint", "convert_model"],
        "projections": ["change_projected_length"],
        "comparison": ["ComparisonArguments", "compare", "compare_models"],
    },
)

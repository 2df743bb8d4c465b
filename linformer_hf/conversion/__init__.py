"""Convert a dense encoder into a Linformer, change its n and k, and compare the two."""

from ..common.lazy import export_lazily


__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "checkpoint_conversion": ["ConversionArguments", "convert_checkpoint", "convert_pretrained"],
        "checkpoint_resizing": ["ResizingArguments", "resize_checkpoint"],
        "comparison": ["ComparisonArguments", "compare", "compare_models"],
        "convert": ["ConversionReport", "convert_model"],
        "embeddings": ["TextEmbedding", "read_embedding"],
        "projections": ["change_projected_length"],
    },
)

"""Text and tables in, examples out: texts, blocks and masks, labels, the GLUE tasks."""

from ..common.lazy import export_lazily


__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "texts": ["TextArguments", "load_texts"],
        "blocks": [
            "MaskingCollator",
            "cut_lines",
            "mask_once",
            "pack_blocks",
            "train_tokenizer",
            "unigram_perplexity",
        ],
        "tables": ["TableArguments"],
        "labels": ["Labels", "labels_of"],
        "glue": ["TASKS", "GlueMetric", "get_task"],
    },
)

"""Text and tables in, examples out: files, tokenizers, blocks and masks, labels, the GLUE tasks."""

from ..common.lazy import export_lazily


__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "texts": ["TextArguments", "load_texts"],
        "library_sample": ["builtin_sample"],
        "tokenizers": ["load_tokenizer", "train_tokenizer"],
        "blocks": ["ExampleStream", "cut_lines", "iterate_blocks", "iterate_lines", "pack_blocks", "read_once"],
        "masking": ["MaskingCollator", "mask_once", "unigram_perplexity"],
        "tables": ["TableArguments"],
        "labels": ["Labels", "labels_of"],
        "glue": ["TASKS", "GlueMetric", "get_task"],
    },
)

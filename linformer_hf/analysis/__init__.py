"""How low the rank of attention maps is, and which k to take."""

from ..common.lazy import export_lazily


__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "maps": ["attention_maps", "token_maps"],
        "singular_values": [
            "cumulative_values",
            "effective_rank",
            "kept_energy",
            "map_singular_values",
            "rank_k_error",
            "recommend",
        ],
        "spectrum": ["SpectrumArguments", "analyze_spectrum"],
    },
)

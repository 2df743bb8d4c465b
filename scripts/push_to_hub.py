r"""Push a saved model to the Hub, with its tokenizer, its card and the code that loads it anywhere.

What would be uploaded, without touching the network:

    python scripts/push_to_hub.py --folder runs/quickstart --repo_id you/my-linformer --dry_run

The push itself, after `hf auth login`:

    python scripts/push_to_hub.py --folder runs/quickstart --repo_id you/my-linformer --private
"""

from linformer_hf.common.command_line import run
from linformer_hf.sharing.hub import PushArguments, push_from_arguments


if __name__ == "__main__":
    run(push_from_arguments, PushArguments, description=__doc__)

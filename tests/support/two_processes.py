"""A function run by two processes that train together, as `torchrun --nproc_per_node 2` would run it.

They are forks of this one, which has imported everything already: a launcher and two interpreters would take twenty
seconds to come as far. The launcher itself has tests of its own.
"""

import os
import socket
from unittest.mock import patch

import torch
from accelerate.state import AcceleratorState, GradientState


def run_by_two(function, file):
    """Run a function in two processes that share a gloo group, and return what it returned in the first one.

    Args:
        function: Takes nothing; a Trainer in it finds the other process.
        file: Where the first process leaves the result.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.start_processes(
        run_as_one_of_two, (function, str(file), port), nprocs=2, start_method="fork", join=False, daemon=True
    )
    # returns when one or both have ended, and raises the error of one that failed
    ended = [context.join(timeout=300) for _ in range(2)]
    assert ended[-1], "two processes have waited for each other for five minutes"
    return torch.load(file)


def run_as_one_of_two(rank, function, file, port):
    """Do the part of one process."""
    group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    settings = {"MASTER_ADDR": "127.0.0.1", "CUDA_VISIBLE_DEVICES": ""} | {name: str(group[name]) for name in group}
    # the parent may have trained before, alone
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    with patch.dict(os.environ, settings):
        result = function()
    if rank == 0:
        torch.save(result, file)
    if torch.distributed.is_initialized():  # a command leaves the group by itself
        assert torch.distributed.get_world_size() == 2
        torch.distributed.destroy_process_group()

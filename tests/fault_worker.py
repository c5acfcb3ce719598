"""Run by torchrun: the FSDP2 example, in which one rank dies after one step, at the first attempt.

torchrun ... tests/fault_worker.py FOLDER VICTIM STEP
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

NUM_STEPS, SAVE_EVERY = 12, 4


def main(folder: Path, victim: int, fatal_step: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # Without torchrun there is no second attempt.
    is_first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"

    def die(step: int) -> None:
        if is_first_attempt and dist.get_rank() == victim and step == fatal_step:
            os.kill(os.getpid(), signal.SIGKILL)

    example = Path(__file__).parent.parent / "examples" / "fsdp2.py"
    train = runpy.run_path(str(example))["train"]
    params = train(folder / "checkpoints", NUM_STEPS, SAVE_EVERY, after_step=die)
    if dist.get_rank() == 0:
        torch.save(params, folder / "params.pt")
    dist.barrier()  # the first rank holds the store that the others still use
    # A process that tears down its gloo group aborts now and then (torch 2.13): end without.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

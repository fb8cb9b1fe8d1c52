"""verl's own SFT trainer on two CPUs; a script for a process of each rank, with the variables that torchrun sets.

All that is changed is how the process group is opened: verl's trainer asks for two back ends of the one device, and the
plug-in for CPUs has opened it already.
"""

import os


def open_group() -> tuple[int, int, int]:
    from verl.plugin.platform import get_platform

    get_platform().communication_backend_name()  # see `CpuPlatform`
    return tuple(int(os.environ[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))  # type: ignore[return-value]


def main() -> None:
    import verl.utils.distributed
    from verl.trainer import sft_trainer

    verl.utils.distributed.initialize_global_process_group = open_group
    sft_trainer.main()


if __name__ == "__main__":
    main()

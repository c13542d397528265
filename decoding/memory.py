"""How much memory is free for caches."""

from pathlib import Path

import psutil
import torch

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """Bytes free on the device; on a CPU within the container's limit, too."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free: int = psutil.virtual_memory().available
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return max(free, 0)

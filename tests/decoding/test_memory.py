from pathlib import Path

import psutil
import pytest
import torch

from decoding.memory import free_bytes

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("limit", "used", "free"), [("3000\n", "1000\n", 2000), ("1000\n", "4000\n", 0), ("max\n", "1\n", None)]
)
def test_a_containers_limit_bounds_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, used: str, free: int | None
) -> None:
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text(used)
    monkeypatch.setattr("decoding.memory._CGROUP", tmp_path)
    available = psutil.virtual_memory().available
    got = free_bytes(CPU)
    assert got == free if free is not None else abs(got - available) < available / 2

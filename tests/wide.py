"""transformers rounds to float32 inside norms and rotary modules, which a comparison in float64 would see."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode


class Wide(TorchFunctionMode):
    """While it is entered, whatever asks for float32, or for no dtype, gets float64."""

    def __enter__(self) -> Self:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        torch.set_default_dtype(self._before)
        super().__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        wide = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        return func(*(torch.float64 if value is torch.float32 else value for value in args), **wide)

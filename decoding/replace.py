"""Puts a plain function where a model has a submodule."""

from collections.abc import Callable

from torch import Tensor, nn


def replace(module: nn.Module, name: str, function: Callable[[Tensor], Tensor]) -> None:
    """`module.name(x)` is function(x) from now on; the submodule and its weights are gone.

    A plain function and not a module: nn.Module's own call and attribute look-up cost more than a small kernel, and a
    step makes hundreds of them.
    """
    delattr(module, name)
    module.__dict__[name] = function

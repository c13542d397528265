"""Puts a plain function where a model has a submodule."""

from collections.abc import Callable
from typing import Any

from torch import nn


def replace(module: nn.Module, name: str, function: Callable[..., Any]) -> None:
    """`module.name(...)` calls the function from now on; the submodule is gone, and its weights where nothing else
    holds them.

    A plain function and not a module: nn.Module's own call and attribute look-up cost more than a small kernel, and a
    step makes hundreds of them.
    """
    delattr(module, name)
    module.__dict__[name] = function

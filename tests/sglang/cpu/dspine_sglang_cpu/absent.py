"""Packages that SGLang imports and that do not run on a CPU build of torch: importable, and an error when called.

One rule: imports succeed, so that modules which mention a kernel or an image transform load; whatever is really
computed by them is written out in `kernels`. Python imports this module at its start, so that it stays light.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ABSENT = ("sgl_kernel", "torchvision")


class Missing:
    """Stands for a function, a class or an enumeration that is not there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.name}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"{self.name} has no CPU build")


class AbsentPackage(MetaPathFinder, Loader):
    """Finds and makes the packages of `ABSENT`, with every submodule that is asked for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in ABSENT:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)

        def attribute(name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            if spec.name.partition(".")[0] == "sgl_kernel":
                from dspine_sglang_cpu import kernels

                if hasattr(kernels, name):
                    return getattr(kernels, name)
            return Missing(f"{spec.name}.{name}")

        module.__getattr__ = attribute
        module.__version__ = "0"  # transformers asks for it
        return module

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.append(AbsentPackage())

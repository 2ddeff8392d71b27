"""Call a function once a module has been imported, without importing it."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Loader(importlib.abc.Loader):
    """The module's own loader, followed by the callback."""

    def __init__(self, loader: importlib.abc.Loader, callback: Callable[[], None]) -> None:
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module has to look as if nobody had stood between: inspect and pickle ask for its loader.
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._callback()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback

    def find_spec(self, fullname: str, path=None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        # Looking for a module need not mean importing it, so this finder stays until the import has happened.
        # The finders before this one have been asked already.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._imported)
                return spec
        return None

    def _imported(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._callback()


def after_import(name: str, callback: Callable[[], None]) -> None:
    """Calls callback() right after the module `name` has been imported for the first time."""
    sys.meta_path.insert(0, _Finder(name, callback))

"""Delete names from MindSpore whose removal version 2.10 announces.

Python imports a module of this name by itself if PYTHONPATH has this folder. Messages of MindSpore's Python code that
contain "deprecated" are written to the file DEPRECATIONS, also those that this project drops.
"""

import importlib.machinery
import logging
import os
import sys
from pathlib import Path

GONE = {
    "mindspore": "set_auto_parallel_context get_auto_parallel_context reset_auto_parallel_context set_ps_context",
    "mindspore.nn": "EmbeddingLookup MultiFieldEmbeddingLookup LazyAdam AdamOffload FTRL",
    "mindspore.ops": "FusedSparseFtrl FusedSparseLazyAdam FusedSparseAdam ApplyFtrl assign scatter_update",
}


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        for name, gone in GONE.items():
            for each in gone.split():
                delattr(sys.modules[name], each)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == "mindspore" else None
        if spec is not None and spec.origin:
            spec.loader = _Loader(name, spec.origin)
        return spec


def _handle(logger, record, handle=logging.Logger.handle):
    if "deprecated" in (message := record.getMessage()):
        with Path(os.environ["DEPRECATIONS"]).open("a", encoding="utf-8") as file:
            file.write(message + "\n")
    handle(logger, record)


sys.meta_path.insert(0, _Finder)
logging.Logger.handle = _handle

"""The tower's matrix products alone in PyTorch, in the step's precision and in memory allocated before.

    python -m benchmarks.peers.pytorch_matmuls matmuls_pytorch WORKLOAD     (see benchmarks.training.train_step)

MindSpore multiplies bfloat16 on a CPU only with AMX; PyTorch does with AVX512_BF16 too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.harness.contender import Parts, serve
from benchmarks.harness.workload import Workload, contender_arguments, tower_widths


def make_products(workload: Workload) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return (left, right, result) of y = x W, dx = dy Wᵀ and dW = xᵀ dy of each layer."""
    dtype = torch.bfloat16 if workload.precision == "bfloat16" else torch.float32
    widths = tower_widths(workload)
    activations = [torch.rand(workload.batch_size, width, dtype=dtype) for width in widths]
    products = []
    for inputs, outputs in itertools.pairwise(activations):
        matrix = torch.rand(inputs.shape[1], outputs.shape[1], dtype=dtype)
        for left, right in ((inputs, matrix), (outputs, matrix.T), (inputs.T, outputs)):
            products.append((left, right, torch.empty(left.shape[0], right.shape[1], dtype=dtype)))
    return products


def matmul_steps(workload: Workload) -> Callable[[int], Parts]:
    """The forward and backward products of the tower."""
    products = make_products(workload)

    def take_steps(count: int) -> Parts:
        for _ in range(count):
            for left, right, result in products:
                torch.mm(left, right, out=result)
        return {}

    return take_steps


def main() -> None:
    """Build the contender and take steps as told."""
    _, workload = contender_arguments(__doc__, ("matmuls_pytorch",))
    torch.set_num_threads(workload.threads)
    serve(matmul_steps(workload))


if __name__ == "__main__":
    main()

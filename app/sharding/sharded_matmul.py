"""One matrix product split over ranks: the redistribution before it, the product of blocks, the sum after it.

Letters: B batch of all ranks, K width in, H width out.
"""

from __future__ import annotations

from mindspore import Tensor, nn, ops

from app.sharding.collectives import Communicator, Redistribute, SumGradientOver, SumOver, split
from app.sharding.layout import Layout
from app.sharding.strategy import INNER, OUTER, ShardedProduct


class ShardedMatMul(nn.Cell):
    """x W for an x [B, K] whose blocks lie as `before`; every rank of `world` makes it at once."""

    def __init__(
        self, world: Communicator, before: Layout, product: ShardedProduct, batch_size: int, width_in: int
    ) -> None:
        super().__init__()
        rank, mesh = world.Get_rank(), product.input.mesh
        self.enter = Redistribute(world, before, product.input, (batch_size, width_in))
        # Each rank along `outer` multiplies its columns of W and knows their share of x's gradient alone.
        self.sum_gradient = SumGradientOver(split(world, mesh.group(rank, [OUTER])))
        self.product = ops.MatMul()
        self.sum_product = SumOver(split(world, mesh.group(rank, [INNER])))

    def construct(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """This rank's blocks of x (lying as `before`) and W -> of the product, lying as `product.output`."""
        inputs = self.sum_gradient(self.enter(inputs))
        return self.sum_product(self.product(inputs, weight))

"""The optimizers of the dense parameters: one for the wide head, one for the tower."""

from __future__ import annotations

from mindspore import Parameter, Tensor, nn

from app.tables.optimizers import AdamOptions, FtrlOptions
from app.wide_deep import WideDeep


class DenseOptimizers(nn.Cell):
    """FTRL for the wide head, Adam for the tower; takes scaled gradients and changes the model's parameters."""

    def __init__(self, model: WideDeep, ftrl: FtrlOptions, adam: AdamOptions, loss_scale: float) -> None:
        super().__init__()
        named = model.named_parameters()
        self.names = tuple(named)
        self.num_wide = len(model.wide.trainable_params())
        self.wide = nn.FTRL(
            list(named.values())[: self.num_wide],
            initial_accum=ftrl.initial_accumulator,
            learning_rate=ftrl.learning_rate,
            l1=ftrl.l1,
            l2=ftrl.l2,
            loss_scale=loss_scale,
        )
        self.tower = nn.Adam(
            list(named.values())[self.num_wide :],
            learning_rate=adam.learning_rate,
            beta1=adam.beta1,
            beta2=adam.beta2,
            eps=adam.epsilon,
            loss_scale=loss_scale,
        )

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple:
        """`gradients`: those of the wide head, then those of the tower, in the order of their parameters."""
        return self.wide(gradients[: self.num_wide]), self.tower(gradients[self.num_wide :])

    def named_state(self) -> dict[str, Parameter]:
        """All that the optimizers remember, by optimizer, array and the model's own parameter names."""
        wide, tower = self.names[: self.num_wide], self.names[self.num_wide :]
        return {
            **{f"ftrl.accumulator.{name}": state for name, state in zip(wide, self.wide.moments, strict=True)},
            **{f"ftrl.linear.{name}": state for name, state in zip(wide, self.wide.linear, strict=True)},
            **{f"adam.first_moment.{name}": state for name, state in zip(tower, self.tower.moment1, strict=True)},
            **{f"adam.second_moment.{name}": state for name, state in zip(tower, self.tower.moment2, strict=True)},
            "adam.beta1_power": self.tower.beta1_power,
            "adam.beta2_power": self.tower.beta2_power,
        }

"""The two losses as plain functions (docs/DESIGN.md, "Losses").

wide_loss = mean binary cross-entropy over the global batch
deep_loss = wide_loss + l2_coef · ½ Σ‖row‖² over the batch's unique deep rows
"""

from __future__ import annotations

from mindspore import Tensor, ops


def cross_entropy(logits: Tensor, labels: Tensor, example_weights: Tensor) -> Tensor:
    """Σ weight · binary cross-entropy, all three [B]; an example's weight is 1 / rows of the global batch, or 0
    where it only fills up a short batch."""
    return ops.binary_cross_entropy_with_logits(logits, labels, example_weights, ops.ones_like(logits), reduction="sum")


def l2_loss(squared_norm: Tensor | float, l2_coef: float) -> Tensor | float:
    """l2_coef · ½ Σ‖row‖², from Σ‖row‖²."""
    return 0.5 * l2_coef * squared_norm


def smoothed(labels: Tensor, label_smoothing: float) -> Tensor:
    """Labels drawn toward ½: (1 - s) · label + s / 2 (Szegedy et al., 2016, with two classes)."""
    return labels * (1 - label_smoothing) + 0.5 * label_smoothing

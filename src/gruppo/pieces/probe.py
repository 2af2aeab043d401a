"""A linear probe: ridge regression on standardised features, with an intercept that is not penalised."""

import torch
from torch import Tensor

Probe = dict[str, Tensor]  # mean_F, scale_F, weight_F, intercept


def fit(x_XF: Tensor, y_X: Tensor, ridge: float) -> Probe:
    """The w and b that minimise Σ (y − b − w·z)² + ridge |w|², z = (x − mean) / std, std with n.

    A constant feature gets std 1, and so weight 0. In float64; with fewer rows than features in the equivalent kernel
    form w = Zᵀ (Z Zᵀ + ridge)⁻¹ (y − mean y).
    """
    x_XF, y_X = x_XF.double(), y_X.double()
    mean_F, scale_F = x_XF.mean(0), x_XF.std(0, correction=0)
    scale_F = torch.where(scale_F > 0, scale_F, torch.ones_like(scale_F))
    z_XF, intercept = (x_XF - mean_F) / scale_F, y_X.mean()
    rows, features = z_XF.shape
    square = z_XF @ z_XF.T if rows < features else z_XF.T @ z_XF
    square = square + ridge * torch.eye(len(square), dtype=square.dtype, device=square.device)
    centred_X = y_X - intercept
    if rows < features:
        weight_F = z_XF.T @ torch.linalg.solve(square, centred_X)
    else:
        weight_F = torch.linalg.solve(square, z_XF.T @ centred_X)
    return {"mean": mean_F, "scale": scale_F, "weight": weight_F, "intercept": intercept}


def predict(probe: Probe, x_XF: Tensor) -> Tensor:
    """b + w·z of each row, in the dtype of the rows."""
    here = {k: v.to(x_XF.device, torch.float64) for k, v in probe.items()}
    z_XF = (x_XF.double() - here["mean"]) / here["scale"]
    return (here["intercept"] + z_XF @ here["weight"]).to(x_XF.dtype)

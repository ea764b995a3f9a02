"""Optimizers, one file each; every one is an ordinary `torch.optim.Optimizer`."""

from nnarena.optim.adamp import SGDP, AdamP
from nnarena.optim.orthadam import OrthAdam

__all__ = ["SGDP", "AdamP", "OrthAdam"]

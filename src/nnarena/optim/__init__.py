"""Optimizers, one file each; every one is an ordinary `torch.optim.Optimizer`."""

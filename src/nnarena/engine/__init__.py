"""The training loop, checkpoints and timing. Knows models, tasks and optimizers only through core."""

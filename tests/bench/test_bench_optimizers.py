"""The times of optimizers: a row for each, and none for one that is wrong."""

from __future__ import annotations

import torch

from nnarena.bench import optimizers

SMALL = {"small": [(3, 2), (4,)]}
CPU = torch.device("cpu")


def test_every_optimizer_has_a_row():
    rows = list(optimizers.compare(CPU, rounds=1, tensors=SMALL))
    assert {row.optimizer for row in rows} >= set(optimizers.ours(False))
    assert all(row.ratio and row.ratio > 0 and not row.graph for row in rows)


def test_who_differs_from_its_peer_has_no_time(monkeypatch):
    monkeypatch.setattr(optimizers, "peers", lambda: {"AdamP": lambda params: torch.optim.SGD(params, lr=1.0)})
    rows = {row.optimizer: row for row in optimizers.compare(CPU, rounds=1, tensors=SMALL)}
    assert rows["AdamP"].ratio is None and rows["AdamP"].note.endswith(" off") and rows["OrthAdam"].ratio

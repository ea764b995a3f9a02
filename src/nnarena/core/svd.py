"""The largest singular values and vectors of a matrix, which may be sparse."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def truncated_svd(
    A: Tensor, rank: int, *, rounds: int = 8, spare: int = 10, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """A ≈ U diag(s) Vᵀ with the `rank` largest singular values s: (M, K), (K,), (N, K).

    Q ← orth(A Ω);  `rounds` times Q ← orth(A orth(Aᵀ Q));  Qᵀ A = W diag(s) Vᵀ exactly;  U = Q W

    Ω has a few random columns to spare (Halko, Martinsson and Tropp 2011). A is touched by products only, so it may be
    sparse. Every column of U has its largest entry positive: signs do not depend on luck. A matrix that is not much
    larger than `rank` is decomposed as it is.
    """
    small = min(A.shape)
    rank = min(rank, small)
    if rank + spare >= small // 2:
        U, s, Vh = torch.linalg.svd(A.to_dense() if A.is_sparse else A, full_matrices=False)
        U, s, V = U[:, :rank], s[:rank], Vh[:rank].T
    else:
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(A.shape[1], rank + spare, generator=generator, dtype=A.dtype).to(A.device)
        Q = _orth(A @ start)
        for _ in range(rounds):
            Q = _orth(A @ _orth(A.T @ Q))
        W, s, Vh = torch.linalg.svd((A.T @ Q).T, full_matrices=False)
        U, s, V = (Q @ W)[:, :rank], s[:rank], Vh[:rank].T
    signs = torch.sign(U.gather(0, U.abs().argmax(0, keepdim=True)))
    return U * signs, s, V * signs


def _orth(X: Tensor) -> Tensor:
    return torch.linalg.qr(X).Q

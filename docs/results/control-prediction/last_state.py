"""A dense network that sees the last state only: what the nine states before it are worth."""

from torch import Tensor, nn


class LastState(nn.Module):
    """y = W₂ GELU(LN(W₁ GELU(LN(E x_T + b)) + b₁)) + b₂: two hidden layers over the last of the states."""

    def __init__(self, input_size: int, output_size: int, hidden_size: int = 256) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(input_size, hidden_size),
            nn.LayerNorm(hidden_size),
            nn.GELU(),
            nn.Linear(hidden_size, hidden_size),
            nn.LayerNorm(hidden_size),
            nn.GELU(),
            nn.Linear(hidden_size, output_size),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x[:, -1])

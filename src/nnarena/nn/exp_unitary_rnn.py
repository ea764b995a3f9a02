"""A recurrent network whose matrix is the exponential of a skew-Hermitian one, and so unitary.

B batch, T time, F input features, H hidden units.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.kernels.linear import Projection
from nnarena.kernels.recurrence import can_fuse
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import glorot_
from nnarena.nn.recurrent import Recurrent
from nnarena.nn.unitary_rnn import Pair, complex_step

Constants = tuple[Tensor, Pair, Tensor]
MOST = 256  # units, up to which the exponential has kernels of its own; what is larger keeps the libraries busy


class ExpUnitaryRNN(Recurrent):
    """Unitary recurrent network by a matrix exponential.

        h ← modReLU(W h + V x_t),   W = exp(L − Lᴴ),   L complex and lower triangular
        modReLU(z) = z / n · relu(n + bias),   n = |z| + 0.01

    Every unitary matrix is such an exponential, and the gradient needs no projection. `capacity` is the share of
    the H (H+1) / 2 entries of L that is trained, those nearest the diagonal first; the others stay 0. `fourier_input`
    reads (x_t, FFT(x_t)), the transform along the features, for x_t. `trainable_initial_state` learns the first h,
    which else is 0.

    Shapes: output (B, T, 2H), the real parts of h and then the imaginary ones; state (re, im), each (B, H),
    h = `torch.complex(re, im)`. `dtype` is that of the real numbers, and complex numbers are pairs of them.
    Parameters: `triangle` (2, K), real and imaginary parts of the K trained entries of L; `weight_ih` (2H, F), the real
    part of V above its imaginary part (2F columns with `fourier_input`); bias (H). The real part of L's diagonal
    cancels in L − Lᴴ: these H numbers are counted, as published, and do nothing.
    Start values: L = 0, so W = I; Glorot for both parts of V; zero bias, so that modReLU starts as the identity.

    The published arena fills L in an order that has no meaning for the cell, which only a capacity below 1 shows.

    Reference: Lezcano-Casado and Martínez-Rubio 2019 (the exponential); modReLU: Arjovsky et al. 2016.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        capacity: float = 1.0,
        fourier_input: bool = False,
        trainable_initial_state: bool = False,
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first=batch_first, backend=backend)
        if not 0 <= capacity <= 1:
            raise ValueError(f"capacity is the share of the triangle that is trained, from 0 to 1, not {capacity}.")
        self.capacity, self.output_size = capacity, 2 * hidden_size
        self.fourier_input = fourier_input

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        places = triangle_places(hidden_size)
        places = places[: int(capacity * len(places))]
        self.places: Tensor
        self.register_buffer("places", places.to(device), persistent=False)
        self.signs: Tensor  # of −L̄: what its real and its imaginary part are multiplied by
        signs = torch.tensor([-1.0, 1.0], device=device, dtype=dtype).view(2, 1, 1)
        self.register_buffer("signs", signs, persistent=False)
        self.triangle = empty(2, len(places))
        self.weight_ih = empty(2 * hidden_size, (1 + fourier_input) * input_size)
        self.bias = empty(hidden_size)
        self.start = empty(2, hidden_size) if trainable_initial_state else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for part in self.weight_ih.chunk(2):
            glorot_(part)
        for parameter in (self.triangle, self.bias, self.start):
            if parameter is not None:
                nn.init.zeros_(parameter)

    def initial_state(self, batch: int, like: Tensor) -> Pair:
        if self.start is None:
            zeros = like.new_zeros(batch, self.hidden_size)
            return zeros, zeros
        return self.start[0].expand(batch, -1), self.start[1].expand(batch, -1)

    def _matrix(self) -> Pair:
        """Real and imaginary part of Wᵀ = e^(Lᵀ − L̄). On a GPU by kernels, which have no second derivative."""
        size = self.hidden_size
        flat = self.triangle.new_zeros(2, size * size).index_copy(1, self.places, self.triangle)
        parts = flat.view(2, size, size)
        parts = torch.addcmul(parts.mT, self.signs, parts)
        if self.backend != "eager" and size <= MOST and can_fuse(self.triangle):
            from nnarena.kernels.layers.exponential import unitary_exponential

            return unitary_exponential(parts)
        matrix = polished(exponential(torch.complex(*parts)))
        return matrix.real, matrix.imag

    def recurrent_matrix(self) -> Tensor:
        """W, (H, H), complex."""
        return torch.complex(*self._matrix()).t()

    def input_matrix(self) -> Pair:
        """Real and imaginary part, (H, F), of V; the Fourier transform is linear in x, and so becomes a part of V."""
        re, im = self.weight_ih.chunk(2)
        if not self.fourier_input:
            return re, im
        cos, sin = fourier_matrix(self.input_size, self.weight_ih)
        (re, re_f), (im, im_f) = re.chunk(2, 1), im.chunk(2, 1)
        return re + re_f @ cos - im_f @ sin, im + re_f @ sin + im_f @ cos

    def constants(self) -> Constants:
        weight = torch.cat(self.input_matrix()) if self.fourier_input else self.weight_ih
        return weight, self._matrix(), self.bias

    def project(self, constants: Constants, x: Tensor, timespans: Tensor | None) -> Projection:
        return Projection(x, constants[0])

    @staticmethod
    def step(constants: Constants, u: Tensor, state: Pair) -> tuple[Pair, Tensor]:
        state = complex_step(constants[1], constants[2], u, state)
        return state, torch.cat(state, -1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, capacity={self.capacity}, fourier_input={self.fourier_input}"


def exponential(matrix: Tensor) -> Tensor:
    """e^A. On a GPU by its series: torch's own looks at the numbers to choose, and the host waits for the device."""
    return exponential_series(matrix) if matrix.is_cuda else torch.linalg.matrix_exp(matrix)


def exponential_series(matrix: Tensor) -> Tensor:
    """e^A = (e^{A/64})^64, the inner one up to the eighth power: right to rounding while ‖A‖ is below 30."""
    a = matrix / 64
    a2 = a @ a
    a3, a4 = a2 @ a, a2 @ a2
    one = torch.eye(len(a), device=a.device, dtype=a.dtype)
    high = one / 24 + a / 120 + a2 / 720 + a3 / 5040 + a4 / 40320
    power = one + a + a2 / 2 + a3 / 6 + a4 @ high
    for _ in range(6):
        power = power @ power
    return power


def polished(matrix: Tensor) -> Tensor:
    """A step of Newton and Schulz towards the nearest unitary matrix.

    In single precision an exponential misses unitarity by 1e-5, which a thousand steps make a hundredth; this is the
    identity but for that error, and so are its gradients.
    """
    return 1.5 * matrix - 0.5 * matrix @ (matrix.mH @ matrix)


def triangle_places(size: int) -> Tensor:
    """Where the entries of a lower triangle lie in a flat (size, size) matrix: the diagonal, the one below it, …"""
    rows, columns = torch.tril_indices(size, size)
    order = torch.argsort(rows - columns, stable=True)
    return (rows * size + columns)[order]


def fourier_matrix(size: int, like: Tensor) -> Pair:
    """Real and imaginary part of the matrix of the discrete Fourier transform, e^{−2πi jk / size}."""
    numbers = torch.arange(size, device=like.device)
    angles = (-2 * math.pi / size) * (numbers.outer(numbers) % size).to(like.dtype)
    return angles.cos(), angles.sin()


@model(
    "matrix_exponential_unitary_rnn",
    reference="Lezcano-Casado and Martínez-Rubio 2019, Cheap orthogonal constraints in neural networks, ICML",
)
def matrix_exponential_unitary_rnn(
    spec: TaskSpec,
    *,
    hidden_size: int = 128,
    capacity: float = 1.0,
    fourier_input: bool = False,
    trainable_initial_state: bool = False,
) -> nn.Module:
    """Unitary network by a matrix exponential: any unitary matrix, learned without constraints.

        h ← modReLU(W h + V x_t),   W = exp(L − Lᴴ),   L complex and lower triangular
        modReLU(z) = z / n · relu(n + bias),   n = |z| + 0.01

    The real and imaginary parts of the last h pass a dense layer. Elapsed time, where a task gives it, is one more
    input.

    Options:
        hidden_size: complex units; the published arena has 128
        capacity: share of the entries of L that is trained, from 0 to 1
        fourier_input: the Fourier transform of the features joins them
        trainable_initial_state: the first h is learned
    """
    layer = ExpUnitaryRNN(
        spec.input_size + spec.timespans,
        hidden_size,
        capacity=capacity,
        fourier_input=fourier_input,
        trainable_initial_state=trainable_initial_state,
    )
    return SequenceModel(layer, spec)

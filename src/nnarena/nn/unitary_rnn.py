"""EUNN: a recurrent network whose matrix is a product of rotations, and so unitary whatever the training does.

B batch, T time, F input features, H hidden units, L layers of rotations.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.kernels.linear import Projection
from nnarena.kernels.recurrence import can_fuse
from nnarena.nn.head import SequenceModel
from nnarena.nn.recurrent import Recurrent

EPSILON = 0.01  # what modReLU adds to every modulus
MOST = 1024  # units whose rows a warp can hold: above, W is multiplied out layer by layer on a GPU too
Pair = tuple[Tensor, Tensor]
Constants = tuple[Tensor, Tensor | Pair, Tensor | None]


class UnitaryRNN(Recurrent):
    """Efficient unitary recurrent network.

        h ← modReLU(W h + U x_t),   W = D R_L … R_2 R_1,   D = diag(e^{iω})
        R_l turns pairs (a, b) of units:   a ← cos θ · a − sin θ · e^{iφ} b
                                           b ← sin θ · a + cos θ · e^{iφ} b
        modReLU(z) = z / n · relu(n + bias),   n = |z| + 0.01

    W is unitary, so W h is as long as h and so is the gradient on its way back. `style` says who is paired:

        "tunable"   neighbours (0, 1), (2, 3), …; every second layer is shifted by one: (1, 2), (3, 4), …
        "fft"       L = log₂ H layers that pair units H/2, H/4, …, 1 apart, as a Fourier transform does

    `capacity` is L in the tunable style, even and at most H, where W can be any unitary matrix; the fft style knows
    its L. `complex=False` leaves out φ, ω and every imaginary part: W is orthogonal. `modrelu=False` leaves out modReLU
    and its bias: the layer is linear.

    Shapes: output (B, T, H), the real part of h; state (re, im), each (B, H), h = `torch.complex(re, im)`; in the real
    variant the state is one tensor (B, H). `dtype` is that of the real numbers, and complex numbers are pairs of them.
    Parameters: θ and φ (L/2, H−1), of which column j turns units j and j+1, or (L, H/2) in the fft style; ω (H);
    `weight_ih` (2H, F), the real part of U above its imaginary part; bias (H).
    Start values: angles uniform in ±π, U in ±0.01, zero bias, so that modReLU starts as the identity.

    W is multiplied out once a call (`recurrent_matrix`): for 128 units this is several times faster than to turn h
    layer by layer at every step. The phase e^{iφ} sits before the rotation, as in the published arena, and not behind
    it, as in the paper; the matrices that can be reached are the same. The real modReLU of the arena has sign(z) for
    z / n and jumps at zero; ours does not.

    Reference: Jing et al. 2017; modReLU: Arjovsky et al. 2016.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        capacity: int = 16,
        style: Literal["tunable", "fft"] = "tunable",
        complex: bool = True,
        modrelu: bool = True,
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first=batch_first, backend=backend)
        self.style = style
        self.complex = complex
        self.distances = rotation_distances(hidden_size, capacity, style)
        self.capacity = len(self.distances)

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        half = hidden_size // 2
        angles = (self.capacity, half) if style == "fft" else (self.capacity // 2, hidden_size - 1)
        self.theta = empty(*angles)
        self.phi = empty(*angles) if complex else None
        self.omega = empty(hidden_size) if complex else None
        self.weight_ih = empty((1 + complex) * hidden_size, input_size)
        self.bias = empty(hidden_size) if modrelu else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for angles in (self.theta, self.phi, self.omega):
            if angles is not None:
                nn.init.uniform_(angles, -math.pi, math.pi)
        nn.init.uniform_(self.weight_ih, -0.01, 0.01)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def initial_state(self, batch: int, like: Tensor) -> Tensor | Pair:
        zeros = like.new_zeros(batch, self.hidden_size)
        return (zeros, zeros) if self.complex else zeros

    def rotate(self, h: Tensor) -> Tensor:
        """W h for each h, one layer of rotations after the other: the definition of W.

        h is (2, …, H), real and imaginary part, or (1, …, H) in the real variant.
        """
        theta, phi = self._layers(self.theta), self._layers(self.phi)
        for layer, distance in enumerate(self.distances):
            shift = layer % 2 if self.style == "tunable" else 0
            h = turn_pairs(h, theta[layer], None if phi is None else phi[layer], distance, shift)
        return h if self.omega is None else _turn(h, self.omega)

    def _layers(self, angles: Tensor | None) -> Any:
        """The angles of each layer, (H/2): in a shifted one, the last unit meets the first and is not turned."""
        if angles is None or self.style == "fft":
            return angles
        shifted = nn.functional.pad(angles[:, 1::2], (0, 1))
        return torch.stack([angles[:, ::2], shifted], 1).flatten(0, 1)

    def _matrix(self) -> tuple[Tensor, ...]:
        """The transposed of W, real and imaginary part, (H, H) each, or the real one alone: the rows of the identity,
        turned. On a GPU by one kernel, which has no second derivative."""
        fused = self.style == "tunable" and self.hidden_size <= MOST and self.backend != "eager"
        if fused and can_fuse(self.theta):
            from nnarena.kernels.layers.rotation import rotated_identity

            return rotated_identity(*(angles for angles in (self.theta, self.phi, self.omega) if angles is not None))
        eye = torch.eye(self.hidden_size, device=self.theta.device, dtype=self.theta.dtype)
        return self.rotate(torch.stack([eye, torch.zeros_like(eye)]) if self.complex else eye.unsqueeze(0)).unbind()

    def recurrent_matrix(self) -> Tensor:
        """W, (H, H), complex, or real in the real variant."""
        parts = [part.t() for part in self._matrix()]
        return torch.complex(*parts) if self.complex else parts[0]

    def constants(self) -> Constants:
        matrix: Any = self._matrix()
        return self.weight_ih, (matrix if self.complex else matrix[0]), self.bias

    def project(self, constants: Constants, x: Tensor, timespans: Tensor | None) -> Projection:
        return Projection(x, constants[0])

    @staticmethod
    def step(constants: Constants, u: Tensor, state: Tensor | Pair) -> tuple[Tensor | Pair, Tensor]:
        _, matrix, bias = constants
        if isinstance(matrix, Tensor):
            z = u + state @ matrix  # type: ignore[operator]
            h = z if bias is None else z * modrelu_scale(z.abs(), bias)
            return h, h
        re, im = complex_step(matrix, bias, u, state)  # type: ignore[arg-type]
        return (re, im), re

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, capacity={self.capacity}, style={self.style!r}, complex={self.complex}"


def rotation_distances(units: int, capacity: int, style: str) -> tuple[int, ...]:
    """How far apart the units are that each layer of rotations pairs; refuses what cannot be paired."""
    if style == "fft":
        if units < 2 or units & (units - 1):
            raise ValueError(f"hidden_size must be a power of two for style 'fft', such as 64 or 128, not {units}.")
        return tuple(units >> layer for layer in range(1, units.bit_length()))
    if style != "tunable":
        raise ValueError(f"style is 'tunable' or 'fft', not {style!r}.")
    if units % 2:
        raise ValueError(f"hidden_size must be even for style 'tunable', which turns pairs of units, not {units}.")
    if capacity % 2 or not 2 <= capacity <= units:
        raise ValueError(f"capacity must be even, at least 2 and at most hidden_size ({units}), not {capacity}.")
    return (1,) * capacity


def turn_pairs(h: Tensor, theta: Tensor, phi: Tensor | None, distance: int, shift: int) -> Tensor:
    """One layer of rotations of units `distance` apart, the first pair beginning at unit `shift`; angles (…, H/2)."""
    h = h.roll(-shift, -1)
    a, b = h.unflatten(-1, (-1, 2, distance)).unbind(-2)
    if phi is not None:
        b = _turn(b, phi.unflatten(-1, (-1, distance)))
    cos, sin = theta.cos().unflatten(-1, (-1, distance)), theta.sin().unflatten(-1, (-1, distance))
    h = torch.stack([cos * a - sin * b, sin * a + cos * b], -2).flatten(-3)
    return h.roll(shift, -1)


def _turn(h: Tensor, angle: Tensor) -> Tensor:
    """e^{i angle} h, for h = (re, im) stacked in front."""
    re, im = h.unbind(0)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([re * cos - im * sin, re * sin + im * cos])


def modrelu_scale(modulus: Tensor, bias: Tensor) -> Tensor:
    """What modReLU multiplies z by: relu(n + bias) / n with n = |z| + 0.01."""
    return (1 + bias / (modulus + EPSILON)).relu()


def complex_step(matrix: Pair, bias: Tensor | None, u: Tensor, state: Pair) -> Pair:
    """modReLU(W h + u) in real numbers: `matrix` is W transposed, u is [Re, Im], (B, 2H)."""
    (A, B), (re, im), (u_re, u_im) = matrix, state, u.chunk(2, -1)
    re, im = (
        torch.addmm(torch.addmm(u_re, re, A), im, B, alpha=-1),
        torch.addmm(torch.addmm(u_im, re, B), im, A),
    )
    if bias is None:
        return re, im
    # The slope of a root is infinite at zero, and zeros are common: an input of zeros to a fresh state.
    modulus = (re * re + im * im).clamp_min(torch.finfo(re.dtype).tiny).sqrt()
    scale = modrelu_scale(modulus, bias)
    return re * scale, im * scale


@model("unitary_rnn", reference="Jing et al. 2017, Tunable efficient unitary neural networks (EUNN), ICML")
def unitary_rnn(
    spec: TaskSpec,
    *,
    hidden_size: int = 128,
    capacity: int = 16,
    style: Literal["tunable", "fft"] = "tunable",
    complex: bool = True,
) -> nn.Module:
    """Efficient unitary network: rotations carry a complex state through time at a constant length.

        h ← modReLU(W h + U x_t),   W = diag(e^{iω}) R_L … R_1
        modReLU(z) = z / n · relu(n + bias),   n = |z| + 0.01

    Each R turns pairs of units by angles that are learned, so that W is unitary. The real part of the last h passes a
    dense layer. Elapsed time, where a task gives it, is one more input.

    Options:
        hidden_size: units; the published arena has 128
        capacity: layers of rotations, even and at most hidden_size; the published arena has 16
        style: who is paired: tunable (neighbours) or fft (a power of two of units, log₂ as many layers, no capacity)
        complex: complex numbers; false leaves rotations of real ones
    """
    layer = UnitaryRNN(spec.input_size + spec.timespans, hidden_size, capacity=capacity, style=style, complex=complex)
    return SequenceModel(layer, spec)

"""Start values that any model can be given: `--set init=he`, or `mlp[init=[he,glorot_uniform]]` to compare some.

Each fills one matrix or kernel in place, from a generator of its own. n inputs and m outputs of a unit are those of the
matrix (m, n); a kernel (m, n/groups, height, width) has n/groups · height · width inputs, and as many positions more
outputs. Biases, norms, embeddings and what is not a plain product of matrices keep the values that their model gives
them: `engine/start.py` says which weights count.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nnarena.core.components import initialiser
from nnarena.core.errors import Unfit


@initialiser("uniform", reference="LeCun et al. 1998, Efficient BackProp")
def uniform(weight: Tensor, inputs: int, outputs: int, generator: torch.Generator) -> None:
    """Uniform, by the number of inputs.

        w ~ U(−1/√n, 1/√n)

    Its variance is 1/(3n): a small signal shrinks by √3 from layer to layer. Some textbooks call this Xavier's rule;
    Glorot and Bengio give it as the custom of before, and `glorot_uniform` as theirs.
    """
    limit = 1 / math.sqrt(inputs)
    weight.uniform_(-limit, limit, generator=generator)


@initialiser("glorot_uniform", reference="Glorot and Bengio 2010, Understanding the difficulty of training, AISTATS")
def glorot_uniform(weight: Tensor, inputs: int, outputs: int, generator: torch.Generator) -> None:
    """Uniform, by inputs and outputs: signals and gradients keep their size where an activation is the identity.

        w ~ U(−√(6/(n+m)), √(6/(n+m)))

    Its variance is 2/(n+m). Also called Xavier's, or normalised Xavier.
    """
    limit = math.sqrt(6 / (inputs + outputs))
    weight.uniform_(-limit, limit, generator=generator)


@initialiser("glorot_normal", reference="Glorot and Bengio 2010, Understanding the difficulty of training, AISTATS")
def glorot_normal(weight: Tensor, inputs: int, outputs: int, generator: torch.Generator) -> None:
    """Normal, with the variance of glorot_uniform.

    w ~ N(0, 2/(n+m))
    """
    weight.normal_(0, math.sqrt(2 / (inputs + outputs)), generator=generator)


@initialiser("he", reference="He et al. 2015, Delving deep into rectifiers, ICCV")
def he(weight: Tensor, inputs: int, outputs: int, generator: torch.Generator) -> None:
    """Normal, by the number of inputs, for ReLU: it passes half of them, so the variance is twice as large.

    w ~ N(0, 2/n)
    """
    weight.normal_(0, math.sqrt(2 / inputs), generator=generator)


@initialiser("he_uniform", reference="He et al. 2015, Delving deep into rectifiers, ICCV")
def he_uniform(weight: Tensor, inputs: int, outputs: int, generator: torch.Generator) -> None:
    """Uniform, with the variance of he.

    w ~ U(−√(6/n), √(6/n))
    """
    limit = math.sqrt(6 / inputs)
    weight.uniform_(-limit, limit, generator=generator)


@initialiser(
    "logistic", reference="Yilmaz and Poli 2022, Successfully and efficiently training deep MLPs, Neural Networks"
)
def logistic(weight: Tensor, inputs: int, outputs: int, generator: torch.Generator) -> None:
    """Normal with a negative mean, for deep nets of logistic units.

        w ~ N(max(−1, −8/n), (3.6/√n)²)

    Their source finds that gradients then do not vanish over ten or fifteen layers. n is the number of inputs here;
    where all layers are equally wide, that is the width of a layer, as textbooks have it.
    """
    weight.normal_(max(-1.0, -8 / inputs), 3.6 / math.sqrt(inputs), generator=generator)


@initialiser("orthogonal", reference="Saxe et al. 2014, Exact solutions to the nonlinear dynamics of learning, ICLR")
def orthogonal(weight: Tensor, inputs: int, outputs: int, generator: torch.Generator) -> None:
    """A random matrix whose rows or columns, whichever are fewer, are orthonormal.

        W Wᵀ = I or Wᵀ W = I

    A kernel counts as the matrix (m, n); a stack of gates as one tall matrix.
    """
    nn.init.orthogonal_(weight, generator=generator)


@initialiser(
    "identity",
    sets="recurrent",
    reference="Le et al. 2015, A simple way to initialize recurrent networks, arXiv:1504.00941",
)
def identity(weight: Tensor, inputs: int, outputs: int, generator: torch.Generator) -> None:
    """The unit matrix for what leads from a state to the next one; all other weights keep theirs.

        U = I

    In a stack of gates each gate has one.
    """
    if weight.ndim != 2 or outputs % inputs:
        raise Unfit(f"its recurrent weights are {tuple(weight.shape)}, which is no stack of square matrices.")
    weight.copy_(torch.eye(inputs, dtype=weight.dtype).repeat(outputs // inputs, 1))

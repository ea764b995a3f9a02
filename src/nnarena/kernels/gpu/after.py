"""What is left to do after the loops: gradients of constants that are products, or sums, over all samples and steps of
what lies in memory.

A product reads its factors anyway, so it takes along what is wanted of them: the sum of one, which is the gradient of a
bias, or for each of the rows that a sample has; and its product with an input of a few features, which is the gradient
of the weights that this meets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from nnarena.kernels.compiler.compiled import Compiled, Gemm, Part, Total
from nnarena.kernels.gpu.gemm import (
    MOST_FEW,
    Sizes,
    for_every_row,
    product_and_sum_over_steps,
    product_over_steps,
    products_over_steps,
)

Memory = dict[str, Tensor]


class Sums(NamedTuple):
    """What is added up over all samples and steps: a part of memory, all rows or each for itself; or each number of an
    input times it."""

    part: Part
    times: int | None = None
    by_row: bool = False


class After:
    """Products and sums of one step, found together: `sums` are those that come with a product which reads the same."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self.sums = [
            Sums(part, each.times, by_row=not self._is_whole(each))
            for each in compiled.totals
            if self._is_whole(each) or self._is_by_row(each)
            for part in each.parts
        ]

    def gradients(self, memory: Memory) -> Iterator[tuple[int, Tensor]]:
        """The number of a constant, and a part of its gradient, (S, …)."""
        found: dict[Sums, Tensor] = {}
        for gemm in self.compiled.gemms:
            yield gemm.constant, self._product(gemm, memory, found)
        for total in self.compiled.totals:
            yield total.constant, self._total(total, memory, found)

    def _product(self, gemm: Gemm, memory: Memory, sums: dict[Sums, Tensor]) -> Tensor:
        """A gradient of a weight. Sums that are wanted of one of its factors go into `sums`."""
        rows, columns = gemm.sides(self.compiled.shapes[f"c{gemm.constant}"])
        of_rows, of_columns = (
            [each for each in self.sums if each not in sums and each.part.within(side)] for side in (rows, columns)
        )
        if of_columns and not of_rows:
            product = self._product_and_sums(columns, rows, of_columns, memory, sums).mT
        else:
            product = self._product_and_sums(rows, columns, of_rows, memory, sums)
        return product if gemm.scale == 1 else gemm.scale * product

    def _product_and_sums(
        self, left: Part, right: Part, wanted: list[Sums], memory: Memory, sums: dict[Sums, Tensor]
    ) -> Tensor:
        """A product, and sums that are wanted of its left side; with one input or for each row, if one is such."""
        factor, summed = _factor(memory, left), any(each == Sums(each.part) for each in wanted)
        few = next((each for each in wanted if each.by_row or each.times is not None), None)
        if few and few.by_row and factor.shape[3] + summed > MOST_FEW:
            few = None
        found = products_over_steps(
            factor,
            _factor(memory, right),
            self.compiled.plan.precision,
            few=None if few is None else _which_row(factor) if few.by_row else memory[f"u{few.times}"],
            summed=summed,
            sizes=self._sizes_of(left, right, few.times if few else None, memory),
        )
        for each in wanted:
            plain = each == Sums(each.part)
            if plain or (few and each[1:] == few[1:]):
                begin = each.part.place.start - left.place.start
                whole = found.sum if plain else found.thin
                sums[each] = whole[..., begin : begin + each.part.width]
        return found.product

    def _sizes_of(self, left: Part, right: Part, times: int | None, memory: Memory) -> Sizes | None:
        """How large the numbers of two factors are, if that is known of both; and those of an input."""
        known = self.compiled.sizes
        if left not in known or right not in known:
            return None
        few = known.get(f"u{times}")
        return Sizes(memory[known[left]], memory[known[right]], memory[few] if few else None)

    def _total(self, total: Total, memory: Memory, sums: dict[Sums, Tensor]) -> Tensor:
        """A gradient of a bias, or of weights that an input of a few features meets."""
        if self._is_whole(total):
            wanted = [Sums(part, total.times) for part in total.parts]
            for each in wanted:
                if each not in sums:
                    self._sum_alone(each, memory, sums)
            return torch.cat([sums[each] for each in wanted], -1) if len(wanted) > 1 else sums[wanted[0]]
        (part,), sizes = total.parts, self.compiled.shapes[f"c{total.constant}"]
        if (known := sums.get(Sums(part, by_row=True))) is not None:
            return known
        rows = _factor(memory, part).sum((1, 2)).flatten(1)
        return rows.unflatten(1, (-1, math.prod(sizes))).sum(1).unflatten(1, sizes)

    def _sum_alone(self, wanted: Sums, memory: Memory, sums: dict[Sums, Tensor]) -> None:
        """A sum of what no product reads; and the bias', which reads the same."""
        factor, bias = _factor(memory, wanted.part), Sums(wanted.part)
        if wanted.times is None:
            sums[wanted] = factor.sum((1, 2, 3))
            return
        few = for_every_row(memory[f"u{wanted.times}"], factor)
        if bias in self.sums:
            product, sums[bias] = product_and_sum_over_steps(factor, few, self.compiled.plan.precision)
        else:
            product = product_over_steps(factor, few, self.compiled.plan.precision)
        sums[wanted] = product.mT

    def _is_whole(self, total: Total) -> bool:
        """Whether a sum has the shape of the constant as it is."""
        shape = self.compiled.shapes[f"c{total.constant}"]
        return total.times is not None or shape == (sum(part.width for part in total.parts),)

    def _is_by_row(self, total: Total) -> bool:
        """Whether it has a number for each of every row, and rows are so few that they are told from each other."""
        (part, *others), shape = total.parts, self.compiled.shapes[f"c{total.constant}"]
        return not others and 1 < part.place.rows <= MOST_FEW and shape == (part.place.rows, part.width)


def _which_row(factor: Tensor) -> Tensor:
    """(S, B, T · rows, rows): a one for each row of (S, B, T, rows, width) at its place."""
    seeds, batch, steps, rows, _ = factor.shape
    return torch.eye(rows, device=factor.device).repeat(steps, 1).expand(seeds, batch, -1, -1)


def _factor(memory: Memory, part: Part) -> Tensor:
    """(S, B, T, rows, width); of a history, the states before each step."""
    whole, place = memory[part.place.name], part.place
    numbers = (whole[:, :, :-1] if place.name.startswith("hist") else whole).flatten(3)
    if place.pitch:
        return numbers.unflatten(3, (place.rows, place.pitch))[..., place.start : place.start + part.width]
    return numbers[..., place.start : place.start + place.rows * part.width].unflatten(3, (place.rows, part.width))

"""Which way a kernel is written down for a GPU, and how many warps run it."""

from __future__ import annotations

from nnarena.kernels.compiler.compiled import Text
from nnarena.kernels.compiler.kernel import Kernel, arguments, multiplied, needed_tiles
from nnarena.kernels.compiler.plan import warps_for
from nnarena.kernels.gpu.emit import emit
from nnarena.kernels.gpu.emit_divided import emit_divided
from nnarena.kernels.gpu.emit_halves import emit_in_halves
from nnarena.kernels.gpu.emit_sums import emit_sums


def write(kernel: Kernel) -> Text:
    warps = warps_for(needed_tiles(kernel), kernel.plan)
    if kernel.plan.divided and not kernel.apart:
        text = emit_divided(kernel, warps)
    elif kernel.apart and kernel.plan.halves:
        text = emit_sums(kernel, warps)
    else:
        text = emit_in_halves(kernel, warps) if multiplied(kernel) else emit(kernel, warps)
    return Text(text, arguments(kernel), warps)

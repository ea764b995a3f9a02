"""Where a loop's matrix units find their weights: computed at every product, instead of being kept for all of them.

The matrix units of an H100 read weights from shared memory, by a descriptor of 64 bits for each product: an address and
a constant. A loop with many weights has a hundred and more, all known before it begins. So LLVM computes them there,
and as there are not that many registers, most are put aside in memory and read again at every step, which the products
wait for. To compute one anew takes one to four instructions.

Triton lets others look at its stages, which is how its text is changed between LLVM and the assembler.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

HOOK = "add_stages_inspection_hook"
PRODUCT = "wgmma.mma_async"
NAME = "nnarena: descriptors computed where they are used"  # to tell our kernels from the same without
# An instruction of one register and constants, such as `add.s64 %rd7, %rd6, 128;`
STEP = re.compile(
    r"\s*(add\.s64|or\.b64|cvt\.u64\.u32|bfe\.u32|and\.b32|shr\.u32|add\.s32)\s+"
    r"(%rd?\d+), (%rd?\d+)((?:, -?\d+)*);"
)
ASSIGNED = re.compile(r"\s*(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|%\w+)")  # a register, or several at once


@contextlib.contextmanager
def computed_in_place() -> Iterator[None]:
    """Kernels that are compiled or launched in here have their descriptors where they are used."""
    from triton import knobs

    if getattr(knobs.runtime, HOOK, _look) is not None:  # somebody else looks, or this Triton lets nobody
        yield
        return
    setattr(knobs.runtime, HOOK, _look)
    try:
        yield
    finally:
        setattr(knobs.runtime, HOOK, None)


def _look(*given: Any) -> tuple[str, str] | None:
    """Triton's hook: called without anything, it names itself; with a backend and its stages, it may change these."""
    if not given:
        return NAME, repr(NAME)
    _, stages, *_ = given
    if make := stages.get("ptx"):
        stages["ptx"] = lambda source, metadata: in_place(make(source, metadata))
    return None


def in_place(text: str) -> str:
    """A kernel in PTX with the descriptors of its products computed in front of each."""
    lines = text.split("\n")
    written = (match[1] for line in lines if (match := ASSIGNED.match(line)))
    times = Counter(name for names in written for name in re.findall(r"%\w+", names))
    found = (match for line in lines if (match := STEP.match(line)))
    steps = {match[2]: match for match in found if times[match[2]] == times[match[3]] == 1}  # never change
    changed: list[str] = []
    count = {"%rd": 0, "%r": 0}

    def again(name: str) -> str:
        """The name of a new register that holds the same."""
        if name not in steps:
            return name
        how, _, before, constants = steps[name].groups()
        before, kind = again(before), name.rstrip("0123456789")
        new = f"{kind}_again{count[kind]}"
        count[kind] += 1
        changed.append(f"\t{how} \t{new}, {before}{constants};")
        return new

    for line in lines:
        if PRODUCT in line:
            line = re.sub(r"%rd\d+", lambda match: again(match[0]), line)
        changed.append(line)
    if not any(count.values()):
        return text
    first = next(number for number, line in enumerate(changed) if line.lstrip().startswith(".reg "))
    new = [f"\t.reg .b64 \t%rd_again<{count['%rd']}>;", f"\t.reg .b32 \t%r_again<{count['%r'] or 1}>;"]
    return "\n".join([*changed[:first], *new, *changed[first:]])

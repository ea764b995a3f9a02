"""Descriptors of products are computed in front of them; nothing else of a kernel changes."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed.", allow_module_level=True)

from triton import knobs

from nnarena.kernels.gpu.descriptors import HOOK, computed_in_place, in_place

BEGIN = """.visible .entry forward(
	.param .u64 .ptr .global .align 1 forward_param_0
)
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<9>;
	mov.b32 	%r1, global_smem;
	add.s32 	%r2, %r1, 2048;
	bfe.u32 	%r3, %r2, 4, 14;
	cvt.u64.u32 	%rd1, %r3;
	or.b64 	%rd2, %rd1, 4611686293305294848;
	ld.param.b64 	%rd3, [forward_param_0];
"""
PRODUCT = "	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r5,%r6}, {%r7,%r8}, {}, %p1, 1, 1, 0;"


def product(descriptor: str) -> str:
    return PRODUCT.replace("{},", descriptor + ",")


def test_a_descriptor_is_computed_from_the_first_register_on_in_front_of_its_product():
    lines = in_place(BEGIN + "$L__BB0_1:\n" + product("%rd2") + "\n}").split("\n")
    place = lines.index("$L__BB0_1:")
    assert lines[place + 1 :] == [
        "	add.s32 	%r_again0, %r1, 2048;",
        "	bfe.u32 	%r_again1, %r_again0, 4, 14;",
        "	cvt.u64.u32 	%rd_again0, %r_again1;",
        "	or.b64 	%rd_again1, %rd_again0, 4611686293305294848;",
        product("%rd_again1"),
        "}",
    ]
    declared = [line.split()[1:] for line in lines if line.strip().startswith(".reg") and "again" in line]
    assert declared == [[".b64", "%rd_again<2>;"], [".b32", "%r_again<2>;"]]


@pytest.mark.parametrize(
    "changing",
    [
        "	add.s64 	%rd2, %rd2, 2;",  # the descriptor itself, from step to step
        "	@%p2 or.b64 	%rd2, %rd3, 1;",
    ],
)
def test_what_changes_in_the_loop_is_left_alone(changing):
    text = BEGIN + "$L__BB0_1:\n" + product("%rd2") + "\n" + changing + "\n}"
    assert in_place(text) == text


@pytest.mark.parametrize("changing", ["	mov.b32 	%r1, 7;", "	ld.shared.v2.b32 	{%r4, %r1}, [%r8];"])
def test_what_changes_is_not_read_later_than_it_was(changing):
    """%r1 has another value at the product than where the descriptor was computed from it."""
    text = BEGIN + changing + "\n" + product("%rd2") + "\n}"
    assert "	bfe.u32 	%r_again0, %r2, 4, 14;" in in_place(text)
    assert "%r_again0, %r1" not in in_place(text)


def test_a_kernel_without_such_products_stays_as_it_is():
    text = BEGIN + "	add.s64 	%rd4, %rd3, 16;\n}"
    assert in_place(text) == text


@pytest.mark.skipif(not hasattr(knobs.runtime, HOOK), reason="This Triton lets nobody look at its stages.")
def test_somebody_elses_look_at_the_stages_is_left_alone(monkeypatch):
    def others(*given):
        return "theirs", "theirs"

    assert getattr(knobs.runtime, HOOK) is None
    with computed_in_place():
        assert getattr(knobs.runtime, HOOK)() != others()
    assert getattr(knobs.runtime, HOOK) is None
    monkeypatch.setattr(knobs.runtime, HOOK, others)
    with computed_in_place():
        assert getattr(knobs.runtime, HOOK) is others
    assert getattr(knobs.runtime, HOOK) is others

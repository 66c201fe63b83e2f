"""Lines of oneDNN 3.12 as torch 2.13 printed them, and multiply-accumulates that were computed by hand."""

from __future__ import annotations

import pytest

from tasks.engines.inductor.coverage import OTHER, attribute
from tasks.engines.inductor.onednn import products_in

HEAD = "onednn_verbose,v1,primitive,exec,cpu,"
CONVOLUTION = (
    "convolution,brg_conv_fwd:avx512_core_vnni,forward_inference,src:u8::blocked:acdb::f0 wei:s8:ap:blocked:AcdB16a4b::f8:zpm1 "
    "bia:f32:a:blocked:a::f0 dst:f32::blocked:acdb::f0,attr-scratchpad:user attr-scales:src0:0:f32+wei:1:f32 "
    "attr-zero-points:src0:0:s32 attr-post-ops:eltwise_relu,alg:convolution_direct,"
    "mb4_ic3oc16_ih16oh16kh3sh1dh0ph1_iw16ow16kw3sw1dw0pw1,23.2539"
)
INT8 = (
    "matmul,brg_matmul:avx512_core_vnni,undef,src:u8:a:blocked:ab::f0 wei:s8::blocked:BA16a64b4a::f8:zpm2 "
    "bia:f32:a:blocked:ab::f0_mask2 dst:u8:a:blocked:ab::f0,attr-scratchpad:user attr-scales:src0:0:f32+dst:0:f32+wei:2:f32 "
    "attr-post-ops:eltwise_relu,,4x4096:4096x64,0.0358887"
)
FLOAT = (
    "inner_product,brg_matmul:avx512_core,forward_inference,src:f32::blocked:ab::f0 wei:f32::blocked:AB16b64a::f0 "
    "bia:f32::blocked:a::f0 dst:f32::blocked:ab::f0,attr-scratchpad:user,,mb72ic64oc32,0.25"
)
BATCHED = (
    "matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:abc::f0 wei:bf16::blocked:abc::f0 dst:bf16::blocked:abc::f0,"
    "attr-scratchpad:user,,12x24x16:1x16x8,0.00585938"
)


@pytest.mark.parametrize(
    ("line", "name", "is_low", "is_half", "macs"),
    [
        (CONVOLUTION, "convolution brg_conv_fwd:avx512_core_vnni u8 x s8", True, False, 4 * 16 * 16 * 16 * 3 * 9),
        # As many outputs, with a quarter of the inputs behind each.
        (
            CONVOLUTION.replace("mb4_ic3oc16", "g4mb4_ic12oc16"),
            "convolution brg_conv_fwd:avx512_core_vnni u8 x s8",
            True,
            False,
            4 * 16 * 16 * 16 * 3 * 9,
        ),
        (INT8, "matmul brg_matmul:avx512_core_vnni u8 x s8", True, False, 4 * 4096 * 64),
        # Weights in integers alone are dequantized, and multiplied as floats.
        (
            INT8.replace("src:u8", "src:f32"),
            "matmul brg_matmul:avx512_core_vnni f32 x s8",
            False,
            False,
            4 * 4096 * 64,
        ),
        (
            INT8.replace("wei:s8", "wei:f32"),
            "matmul brg_matmul:avx512_core_vnni u8 x f32",
            False,
            False,
            4 * 4096 * 64,
        ),
        (FLOAT, "inner_product brg_matmul:avx512_core f32 x f32", False, False, 72 * 64 * 32),
        # Asked in float32, computed in bfloat16 within.
        (
            FLOAT.replace("attr-scratchpad:user", "attr-scratchpad:user attr-fpmath:bf16"),
            "inner_product brg_matmul:avx512_core f32 x f32 in bf16",
            False,
            True,
            72 * 64 * 32,
        ),
        (BATCHED, "matmul brg_matmul:avx512_core_bf16 bf16 x bf16", False, True, 12 * 24 * 16 * 8),
    ],
)
def test_executed_product_has_its_kernel_and_work(line: str, name: str, is_low: bool, is_half: bool, macs: int) -> None:
    (found,) = products_in([HEAD + line])
    kernel = found.kernel
    assert (kernel.name, kernel.is_low_precision, kernel.is_half, found.macs) == (name, is_low, is_half, macs)


def test_only_executed_products_count() -> None:
    reorder = "reorder,jit:uni,undef,src:f32::blocked:ab::f0 dst:s8::blocked:ab::f0,attr-scratchpad:user,,64x64,0.01"
    lines = ["onednn_verbose,v1,info,cpu,isa:Intel AVX-512", HEAD + reorder, "", HEAD + INT8]
    assert [one.microseconds for one in products_in(lines)] == [pytest.approx(35.8887)]


def test_product_without_a_primitive_of_its_size_counts_as_float() -> None:
    ran = products_in([HEAD + INT8, HEAD + FLOAT])
    found = attribute([("first", 72 * 64 * 32), ("second", 100), ("third", 4 * 4096 * 64)], ran)
    assert [(node.name, node.kernel) for node in found] == [
        ("first", ran[1].kernel.name),
        ("second", OTHER),
        ("third", ran[0].kernel.name),
    ]

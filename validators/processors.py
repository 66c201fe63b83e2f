"""Instruction sets of processors, which decide where sums of INT8 products are exact, and what computes in bfloat16."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

# Instruction sets that decide which kernels run, spelled as in /proc/cpuinfo. A manifest names each of them.
ISA_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx_ne_convert",
    "amx_int8",
    "amx_bf16",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)
# Of x86: products of 8 bits that are added in 32 bits.
VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")
# With one of these the libraries' own lists say that a processor computes in bfloat16.
OPENVINO_BF16 = ("avx512_bf16", "amx_bf16", "avx_ne_convert")
TORCH_BF16 = ("avx512_bf16", "amx_bf16", "bf16")


@dataclass(frozen=True)
class Processor:
    """A processor by those of `ISA_FLAGS` that it has; all that depends on it is a function of this record.

    `is_any`: it stands for every processor, so that nothing made for it may hold code for one.
    """

    isa: tuple[str, ...]
    is_any: bool = False

    @property
    def adds_pairs_in_16_bits(self) -> bool:
        """True if INT8 products are added by vpmaddubsw, which saturates: on x86 without VNNI or AMX.

        ONNX Runtime documentation, "Quantize ONNX models", on U8S8 with AVX2 and AVX512; `benchmarks/integer_products.py`.

        >>> Processor(("avx2", "avx512f")).adds_pairs_in_16_bits, Processor(("avx2", "avx_vnni")).adds_pairs_in_16_bits
        (True, False)
        >>> Processor(("asimddp",)).adds_pairs_in_16_bits
        False
        """
        return self.saturates(VNNI)

    def saturates(self, without: Collection[str]) -> bool:
        """Return True if sums saturate here that do so on x86 processors `without` any of some instruction sets.

        >>> Processor(("avx2",)).saturates(VNNI), Processor(("avx2",)).saturates(()), Processor(("asimddp",)).saturates(VNNI)
        (True, False, False)
        """
        return bool(without) and "avx2" in self.isa and not self.has_any(without)

    def has_any(self, instructions: Iterable[str]) -> bool:
        """Return True if the processor has one of the instruction sets."""
        return not set(instructions).isdisjoint(self.isa)


# The processor that portable variants are made for: the least one that the engines support.
PORTABLE = Processor(("avx2",), is_any=True)

"""A processor with fewer instruction sets than this one, for a command and all that it starts, at full speed.

    python tests/support/other_processor.py avx2 COMMAND ARGUMENT...

runs a command on a kind of processor; see `cpuid_mask.c`, which a C compiler makes a library of. Linux on x86-64 alone. Where
the processor cannot make CPUID fault (`cpuid_fault` in /proc/cpuinfo), objdump reads each library once: a minute for all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("cpuid_mask.c")
# Flags of /proc/cpuinfo that processors have together.
FAMILIES = {
    "avx512f": "avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512vbmi avx512_vbmi2 avx512_bitalg "
    "avx512_vpopcntdq avx512_vp2intersect avx10",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16 avx512_fp16",
    "avx_vnni": "avx_vnni avx_vnni_int8 avx_vnni_int16 avx_ifma avx_ne_convert",
    "amx_int8": "amx_tile amx_int8 amx_bf16 amx_fp16",
}
# Kinds of processors by the families that they have beside AVX2, from the least.
KINDS = {
    "avx2": (),  # Intel to 2018 and Zen to Zen 3
    "avx_vnni": ("avx_vnni",),  # Alder Lake and later desktops
    "avx512": ("avx512f",),  # Skylake-SP
    "avx512_vnni": ("avx512f", "avx512_vnni"),  # Cascade Lake and Ice Lake
    "avx512_bf16": ("avx512f", "avx512_vnni", "avx512_bf16"),  # Cooper Lake and Zen 4
    "amx": ("avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8"),  # Sapphire Rapids and later
}


def flags_here() -> frozenset[str]:
    """Return the flags of this processor, without those that are hidden from this process."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def why_not(kind: str) -> str | None:
    """Return why this processor cannot stand in for a kind; None if it can."""
    here = flags_here()
    missing = [family for family in ("avx2", *KINDS[kind]) if family not in here]
    if missing:
        return f"this processor has no {missing[0]}"
    if "cpuid_fault" in here or not _hidden(kind) & here or shutil.which("objdump"):
        return None
    return "this processor cannot make CPUID fault, and objdump is missing"


def kinds_here() -> tuple[str, ...]:
    """Return the kinds that this processor can stand in for, its own among them."""
    return tuple(kind for kind in KINDS if why_not(kind) is None)


def own_kind() -> str:
    """Return the kind of this processor, as this process sees it: the last one whose families it has."""
    here = flags_here()
    fitting = [kind for kind, families in KINDS.items() if all(one in here for one in ("avx2", *families))]
    return fitting[-1] if fitting else "other"


def environment(kind: str) -> dict[str, str]:
    """Return the environment variables for a process on a kind of processor; empty if this one is of that kind."""
    here = flags_here()
    hidden = _hidden(kind) & here
    if not hidden:
        return {}
    library = _library()
    found = {"CPUID_MASK_HIDE": ",".join(sorted(hidden)), "LD_PRELOAD": str(library)}
    if "cpuid_fault" in here:
        return found
    sites = library.with_name("sites")
    sites.mkdir(exist_ok=True)
    return {**found, "LD_AUDIT": str(library), "CPUID_MASK_SITES": str(sites)}


def _hidden(kind: str) -> frozenset[str]:
    return frozenset(flag for family, flags in FAMILIES.items() if family not in KINDS[kind] for flag in flags.split())


def _library() -> Path:
    """Compile the library, once for each text of its source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"quantgate-cpuid-mask-{os.getuid()}-{digest}" / "cpuid_mask.so"
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        made = path.with_name(f"{os.getpid()}.so")
        subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"], check=True)
        made.rename(path)
    return path


def main() -> None:
    """Replace this process by the command."""
    if len(sys.argv) < 3 or sys.argv[1] not in KINDS:
        sys.exit(f"usage: other_processor.py {{{','.join(KINDS)}}} COMMAND ARGUMENT...")
    kind, *command = sys.argv[1:]
    if why := why_not(kind):
        sys.exit(f"{kind}: {why}")
    os.execvpe(command[0], command, os.environ | environment(kind))


if __name__ == "__main__":
    main()

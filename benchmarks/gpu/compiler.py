"""The compiling process for a machine whose torch is older than quantgate requires: a fault of torch 2.11 is mended first."""

from __future__ import annotations

import json
import sys
from typing import Any


def redeclare_sizes() -> None:
    """Declare the sizes of a kernel at each call, as torch 2.13 does.

    With `cpp.enable_kernel_profile` each call has a scope of its own, and torch 2.11 declares the sizes in the first one alone:
    the code of a model that calls a kernel twice does not compile.
    """
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch.utils._ordered_set import OrderedSet

    class Forgetful(OrderedSet[Any]):
        def __contains__(self, item: object) -> bool:
            return False

    made = PythonWrapperCodegen.__init__

    def make(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self.kernel_numel_expr = Forgetful()

    PythonWrapperCodegen.__init__ = make  # type: ignore[method-assign]  # torch offers no other hook


if __name__ == "__main__":
    redeclare_sizes()
    from tasks.engines.inductor.compile_process import main

    main(json.load(sys.stdin))

"""Environment of child processes: an allow-list of variables, in place of all that this process has."""

from __future__ import annotations

import os
from collections.abc import Mapping

from validators.redact import without_secrets

# What Python, the numeric libraries, the runtimes and a compiler read. Names are complete, or begin so with a star.
_KEPT = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "VIRTUAL_ENV"),
    *("PYTHON*", "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "CC", "CXX", "MALLOC_*", "GLIBC_TUNABLES"),
    *("CUDA_*", "NVIDIA_*", "TRITON_*", "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "ONEDNN_*", "DNNL_*"),
    *("ORT_*", "OV_*", "OPENVINO_*", "TORCH*", "ATEN_*", "TOKENIZERS_PARALLELISM", "KERAS_BACKEND"),
)
# Permissions for code of jobs, and settings of an operator for that code.
HOOKS = ("QUANTGATE_ALLOWED_*", "QUANTGATE_HOOK_*")


def child_environment(*more: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of this process that a child needs to compute, without secrets.

    `more` are further names, or the beginnings of names with a star. `environment` defaults to that of the process.

    >>> child_environment(environment={"PATH": "/bin", "LC_ALL": "C", "MLFLOW_TRACKING_URI": "http://host", "OMP_TOKEN": "x"})
    {'PATH': '/bin', 'LC_ALL': 'C'}
    """
    found = without_secrets(os.environ if environment is None else environment)
    exact = {name for name in (*_KEPT, *more) if not name.endswith("*")}
    begins = tuple(name[:-1] for name in (*_KEPT, *more) if name.endswith("*"))
    return {name: value for name, value in found.items() if name in exact or name.startswith(begins)}

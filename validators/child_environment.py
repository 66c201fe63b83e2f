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
# What runs of a worker read besides: servers, stores, credentials of both, proxies and certificates.
_OF_RUNS = (
    *("QUANTGATE_*", "PREFECT_*", "MLFLOW_*", "AWS_*", "AZURE_*", "GOOGLE_*", "DATABRICKS_*", "HF_*", "DO_NOT_TRACK"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_PYTHON_REFRESH", "SHELL", "TERM", "COLUMNS", "XDG_*"),
)
# Settings of servers, which a run must not have.
_OF_SERVERS = ("QUANTGATE_WEBHOOK_SECRET", "PREFECT_SERVER_*", "MLFLOW_WEBHOOK_*", "MLFLOW_BACKEND_STORE_URI")
# Permissions for code of jobs, and settings of an operator for that code.
HOOKS = ("QUANTGATE_ALLOWED_*", "QUANTGATE_HOOK_*")


def child_environment(*more: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of this process that a child needs to compute, without secrets.

    `more` are further names, or the beginnings of names with a star. `environment` defaults to that of the process.

    >>> child_environment(environment={"PATH": "/bin", "LC_ALL": "C", "MLFLOW_TRACKING_URI": "http://host", "OMP_TOKEN": "x"})
    {'PATH': '/bin', 'LC_ALL': 'C'}
    """
    found = without_secrets(os.environ if environment is None else environment)
    return {name: value for name, value in found.items() if _is_among(name, (*_KEPT, *more))}


def run_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the runs of a worker need, credentials of their servers and stores among them.

    >>> run_environment({"AWS_SECRET_ACCESS_KEY": "s", "QUANTGATE_WEBHOOK_SECRET": "w", "DEPLOY_TOKEN": "t", "PATH": "/bin"})
    {'AWS_SECRET_ACCESS_KEY': 's', 'PATH': '/bin'}
    """
    return {
        name: value
        for name, value in environment.items()
        if _is_among(name, (*_KEPT, *_OF_RUNS)) and not _is_among(name, _OF_SERVERS)
    }


def _is_among(name: str, names: tuple[str, ...]) -> bool:
    return any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in names)

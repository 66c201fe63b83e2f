"""Libraries of custom operators: resolved from the job, loaded once as a check, and described for consumers of the variant.

A library is code that every session runs. The job names it, never a model file, and the operator must allow it by name
(`validators.untrusted.operator_allowlist`).
"""

from __future__ import annotations

import importlib
import shutil
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from validators.digests import digest_file
from validators.errors import JobError
from validators.job.job_data import OperatorLibrary
from validators.records.libraries import Library
from validators.untrusted.operator_allowlist import check_library


def find_library(named: OperatorLibrary) -> Library:
    """Return the library that a job names.

    Raises:
        JobError: the operator does not allow it, the file is missing, the package is not installed or offers no library, or
            ONNX Runtime does not load it.
    """
    if named.package:
        check_library(named.package, "")  # check first: importing the package runs its code
        library = _from_package(named.package)
    else:
        library = _from_file(named.file or Path())
        check_library(None, library.digest)
    _check_loads(library)
    return library


def copy_library(library: Library, folder: Path) -> Library:
    """Copy the file of a library into a folder and return the library of the copy."""
    return replace(library, path=Path(shutil.copy(library.path, folder)))


def describe_library(library: Library) -> dict[str, str]:
    """Return a library's entry in a manifest: the file beside the variant's model, or the package to install."""
    if library.package is None:
        return {"file": library.path.name, "sha256": library.digest}
    return {
        "package": library.package,
        "distribution": str(library.distribution),
        "version": str(library.version),
        "sha256": library.digest,
    }


def _from_file(path: Path) -> Library:
    if not path.is_file():
        raise JobError(
            found=f"operator library {path}: no such file",
            expected="a shared library of custom operators",
            fix="correct the path in `operator_libraries`; it is relative to the job file",
        )
    return Library(path.resolve(), digest_file(path))


def _from_package(package: str) -> Library:
    distributions = metadata.packages_distributions().get(package.partition(".")[0], [])
    try:
        path = Path(importlib.import_module(package).get_library_path())
    except (ImportError, AttributeError) as error:
        raise JobError(
            found=f"operator library of package {package!r}: {error}",
            expected="an installed Python package with a function `get_library_path()`",
            fix="install the package where the job runs, or name the library by its `file`",
        ) from error
    if not distributions:
        raise JobError(
            found=f"package {package!r} belongs to no installed distribution",
            expected="a package of a versioned distribution, which consumers can install too",
            fix="install it with pip, or name the library by its `file`",
        )
    return Library(path, digest_file(path), package, distributions[0], metadata.version(distributions[0]))


def _check_loads(library: Library) -> None:
    import onnxruntime as ort

    try:
        ort.SessionOptions().register_custom_ops_library(str(library.path))
    except Exception as error:  # the bindings raise a different class for each reason
        raise JobError(
            found=f"ONNX Runtime {ort.__version__} does not load {library.path.name}: {str(error).splitlines()[0][:300]}",
            expected="a library of custom operators (with `RegisterCustomOps`) for this platform and runtime",
            fix="build it for this platform, with the headers of the same or an older runtime",
        ) from error

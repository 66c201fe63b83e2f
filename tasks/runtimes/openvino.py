"""OpenVINO provider of ONNX Runtime, a plugin in a separate package: its installation, devices and options.

The plugin is registered once per process (ONNX Runtime documentation, "Plugin Execution Provider Libraries"); a session then
names one of its devices. Up to version 1.8.1 it offers devices on Intel processors only: it compares the vendor id with 0x8086
(onnxruntime pull request 31981).
"""

from __future__ import annotations

import json
import threading
from importlib import import_module, metadata, util
from typing import TYPE_CHECKING, Any

from tasks.runtimes.missing import Missing
from validators.errors import CandidateRefused
from validators.providers import OPENVINO_PROVIDER

if TYPE_CHECKING:
    import onnxruntime as ort

DISTRIBUTION = "onnxruntime-ep-openvino"
MODULE = "onnxruntime_ep_openvino"
VERSION = "1.8.1"

_REGISTERING = threading.Lock()
# ONNX Runtime's message for a library that this process has registered before; there is no query for it.
REGISTERED = "already registered"


def installed_version() -> str | None:
    """Return the version of the installed plugin, or None."""
    if util.find_spec(MODULE) is None:
        return None
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def library_path() -> str:
    """Return the path of the plugin's library.

    Raises:
        CandidateRefused: `unsupported`: the plugin is not installed, or its library is missing.
    """
    if installed_version() is None:
        raise _refuse(
            Missing(
                f"{DISTRIBUTION} is not installed",
                f"the OpenVINO provider for ONNX Runtime, version {VERSION}",
                "install the extra `openvino`, or use candidates for ort-cpu",
            )
        )
    try:
        return str(import_module(MODULE).get_library_path())
    except (ImportError, OSError) as error:
        raise _refuse(
            Missing(f"{DISTRIBUTION} lacks its library: {error}", "a complete installation", "reinstall it")
        ) from error


def find_device() -> ort.OrtEpDevice:
    """Register the plugin and return its processor device, for `SessionOptions.add_provider_for_devices`.

    Raises:
        CandidateRefused: `unsupported`: the plugin is not installed, does not load, or has no device for this processor.
    """
    import onnxruntime as ort

    path = library_path()
    with _REGISTERING:
        if not _offered():
            try:
                ort.register_execution_provider_library(OPENVINO_PROVIDER, path)
            except Exception as error:  # the bindings raise a dozen unrelated classes
                if REGISTERED not in str(error):
                    raise _refuse(_not_loaded(error)) from error
    offered = _offered()
    if offered:
        return offered[0]
    cpu = ort.OrtHardwareDeviceType.CPU
    devices = [one.device for one in ort.get_ep_devices() if one.device.type == cpu]
    makers = sorted({device.vendor or hex(device.vendor_id) for device in devices})
    raise _refuse(
        Missing(
            f"{DISTRIBUTION} {installed_version()} offers no device for this processor, made by "
            + (", ".join(makers) or "nobody known"),
            "a processor made by Intel, the only ones that the plugin supports",
            "run the job on such a processor, or use candidates for ort-cpu",
        )
    )


def _offered() -> list[ort.OrtEpDevice]:
    """Return the plugin's processor devices; empty before the plugin is registered."""
    import onnxruntime as ort

    cpu = ort.OrtHardwareDeviceType.CPU
    return [one for one in ort.get_ep_devices() if one.ep_name == OPENVINO_PROVIDER and one.device.type == cpu]


def _not_loaded(error: Exception) -> Missing:
    reason = str(error).strip().partition("\n")[0][:300]
    return Missing(
        f"ONNX Runtime does not load {DISTRIBUTION} {installed_version()}: {reason}",
        "a plugin that was made for this version of ONNX Runtime",
        f"install {DISTRIBUTION}=={VERSION} beside onnxruntime==1.31.1",
    )


def why_missing() -> Missing | None:
    """Return why no session can be opened with the provider here; None if one can."""
    try:
        find_device()
    except CandidateRefused as error:
        return Missing(error.found, error.expected, error.fix)
    return None


def provider_options(threads: int) -> dict[str, str]:
    """Return the provider's options: this many threads, one request at a time, and float32 for non-integer layers.

    By default the provider takes all cores, whatever the session's options say, and silently computes float layers in bfloat16
    on processors that support it (OpenVINO documentation, "CPU Device", "Floating Point Data Types Specifics";
    `ov::hint::inference_precision`, `ov::inference_num_threads`, `ov::num_streams`).
    """
    config = {"INFERENCE_NUM_THREADS": str(threads), "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}
    return {"load_config": json.dumps({"CPU": config})}


def describe_plugin(threads: int) -> dict[str, Any]:
    """Return the data with which a consumer opens a session with the provider, without importing quantgate."""
    return {
        "distribution": DISTRIBUTION,
        "version": installed_version(),
        "module": MODULE,
        "options": provider_options(threads),
    }


def _refuse(missing: Missing) -> CandidateRefused:
    return CandidateRefused(kind="unsupported", found=missing.found, expected=missing.expected, fix=missing.fix)

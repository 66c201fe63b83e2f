"""Steps of a run in rooms, from what all share (`run`) to the watch over champions; imports nothing of `flows`."""

import os
import sys

# ONNX Runtime and OpenVINO report their use to their makers unless told otherwise before they are imported. OpenVINO reads no
# variable for it, and has a stub for an environment without the package that sends.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None makes an import fail

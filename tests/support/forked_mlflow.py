"""An MLflow server that starts in a second: `python tests/support/forked_mlflow.py DATABASE ARTIFACTS PORT`.

For each line of standard input a server is forked from this process, which has imported what takes seconds; its process id is
printed. It is the application that `mlflow server` runs, on the same database.
"""

from __future__ import annotations

import os
import signal
import sys

from tasks.service.processes import die_with_parent


def main(database: str, artifacts: str, port: int) -> None:
    """Fork a server for each line."""
    from mlflow.server import constants

    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: f"sqlite:///{database}",
        constants.ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/",
        constants.ARTIFACTS_DESTINATION_ENV_VAR: artifacts,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "_MLFLOW_SGI_NAME": "uvicorn",
    }
    import uvicorn
    from mlflow.server.fastapi_app import app

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            die_with_parent()
            uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

"""The address of MLflow's table of runs that `serve` and `ui` print."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from flows.service.serve import runs_page

PATH = "/api/2.0/mlflow/experiments/get-by-name?experiment_name=quantgate"


class Registry(BaseHTTPRequestHandler):
    """It knows one experiment, as MLflow's REST API answers."""

    def do_GET(self) -> None:
        """Answer for the experiment alone."""
        is_known = self.path == PATH and self.server.server_name != "empty"
        self.send_response(200 if is_known else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"experiment": {"experiment_id": "7"}} if is_known else {}).encode())

    def log_message(self, *_given: object) -> None:
        """Be quiet."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    served = HTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


def test_the_address_opens_the_table_of_runs(server: HTTPServer) -> None:
    """Before the first run there is no such page, nor where no server answers."""
    address = f"http://127.0.0.1:{server.server_port}"
    assert runs_page(address) == f"{address}/#/experiments/7/runs?workflowType=machine_learning"
    server.server_name = "empty"
    assert runs_page(address) is None and runs_page("http://127.0.0.1:9") is None

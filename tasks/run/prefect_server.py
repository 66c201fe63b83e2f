"""Client of the Prefect server that raises quantgate's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from validators.errors import InfrastructureError


@contextmanager
def server_client() -> Iterator[SyncPrefectClient]:
    """Yield a client, and turn its errors into quantgate's.

    Raises:
        InfrastructureError: the server does not answer, or refuses a request.
    """
    try:
        with get_client(sync_client=True) as client:
            yield client
    except PrefectHTTPStatusError as error:
        raise InfrastructureError(
            found=f"the Prefect server at {_address()} returned {error.response.status_code}: {error.response.text[:300]}",
            expected="a server of the version that quantgate is pinned to, with deployments of this version of quantgate",
            fix="compare `prefect version` with the server's; run `quantgate deploy`; read the server's log",
        ) from error
    except (httpx.HTTPError, OSError) as error:
        raise InfrastructureError(
            found=f"the Prefect server at {_address()} does not answer: {type(error).__name__}: {error}",
            expected="a server that answers",
            fix="check PREFECT_API_URL, and that the server runs",
        ) from error


def _address() -> str:
    return str(PREFECT_API_URL.value() or "an address of its own")

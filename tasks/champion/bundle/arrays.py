"""Check of the arrays in a bundle: numpy allocates what a header declares, so each is compared with the bytes it has."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping

from tasks.champion.signed_evidence.archive import BundleUnsound
from validators.samples.array_files import check_header

# Arrays of a latency.
_MOST_ARRAYS = 100
# End of the central directory: APPNOTE.TXT of PKWARE, sections 4.3.16 and 4.3.15.
_END, _LOCATOR_BYTES = struct.Struct("<4s4H2IH"), 20


def check_arrays(members: Mapping[str, bytes]) -> None:
    """Check every array of a bundle by its header, before numpy reads it.

    Raises:
        BundleUnsound: a member is no array or archive of arrays that numpy writes, holds Python objects, is compressed, or
            declares another size than it has.
    """
    for name, content in members.items():
        try:
            if name.endswith(".npy"):
                check_header(io.BytesIO(content), len(content), name)
            elif name.endswith(".npz"):
                _check_archive(content)
        except Exception as error:  # zipfile raises several classes for damaged archives
            raise BundleUnsound(name, f"it holds no arrays as numpy writes them: {error}") from error


def _check_archive(content: bytes) -> None:
    # zipfile makes an object of each declared member before it looks at one; its 64-bit form declares them elsewhere.
    fields = _END.unpack(content[-_END.size :])
    if fields[4] > _MOST_ARRAYS or content[-_END.size - _LOCATOR_BYTES :].startswith(b"PK\x06\x07"):
        raise ValueError(f"found {fields[4]} arrays; expected at most {_MOST_ARRAYS}")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        found = archive.infolist()
        if any(one.compress_type != zipfile.ZIP_STORED for one in found):
            raise ValueError("found compressed arrays; expected stored ones")
        if (declared := sum(one.file_size for one in found)) > len(content):
            raise ValueError(f"found {declared} bytes declared in {len(content)}")
        for one in found:
            with archive.open(one) as stream:
                check_header(stream, one.file_size, one.filename)

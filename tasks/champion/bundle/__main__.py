"""Verify a bundle: `python -m tasks.champion.bundle BUNDLE [--key PUBLIC.pem] [--artifacts FOLDER]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tasks.champion.bundle.verify import is_sound, read_key, verify
from validators.errors import JobError

MARKS = {True: "sound", False: "FAILED", None: "not verified"}


def main() -> int:
    """Print each part; return 0 if no part failed, 1 if one did, 2 if the key cannot be read."""
    parser = argparse.ArgumentParser("python -m tasks.champion.bundle", description=__doc__)
    parser.add_argument("bundle", type=Path, help="evidence.zip, or the folder of a downloaded version")
    parser.add_argument("--key", type=Path, help="the public key in PEM that must have signed it")
    parser.add_argument("--artifacts", type=Path, help="a folder with the files that the bundle is about")
    options = parser.parse_args()
    try:
        key = read_key(options.key) if options.key else None
    except JobError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    parts = verify(options.bundle, key=key, artifacts=options.artifacts)
    for part in parts:
        print(f"{MARKS[part.is_sound]:12}  {part.part}: {part.told}")
    return 0 if is_sound(parts) else 1


if __name__ == "__main__":
    sys.exit(main())

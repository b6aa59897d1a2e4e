"""What was made, by what it was made of: a run that is begun again goes on where the last one stopped.

An artefact appears under its final name in one rename and its record after it, so what has a record is whole.
"""

import errno
import hashlib
import json
import os
import pathlib

from . import VERSION
from .errors import BadInput


class Store:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    @staticmethod
    def key(*what):
        """An address: of the parent's digest, the recipe with its settings, the data's digest, and this tool."""
        text = json.dumps([VERSION, *what], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def find(self, key):
        """The record of what was made or refused, if it is there and the artefact is what the record says."""
        try:
            record = json.loads((self.folder / f"{key}.json").read_text())
            if record["outcome"] == "made":
                file = record["file"]
                if file not in (f"{key}.onnx", f"{key}.pt") or sha256(self.folder / file) != record["sha256"]:
                    return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return record

    def keep(self, key, record, content=None, end="onnx"):
        """Writes an artefact, if there is one, and its record."""
        record = dict(record)
        if content is not None:
            record |= {"file": f"{key}.{end}", "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            self.write(f"{key}.{end}", content)
        self.write(f"{key}.json", json.dumps(record, sort_keys=True).encode())
        return record

    def write(self, name, content):
        staged = self.folder / f".{name}.part"
        try:
            with open(staged, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(staged, self.folder / name)
        except OSError as error:
            staged.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise full(len(content)) from error
            if error.errno == errno.EFBIG:
                raise BadInput("file-too-large", f"a file of {len(content)} bytes is larger than this tool may write") from error
            raise BadInput("cannot-write", f"the output folder cannot be written to: {error.strerror}") from error

    def must_have_room(self, wanted):
        free = os.statvfs(self.folder)
        if free.f_bavail * free.f_frsize < wanted:
            raise full(wanted)


def full(wanted):
    return BadInput(
        "disk-full",
        f"there is no room for {wanted} bytes in the output folder; make room and start again: what is made by now is kept",
    )


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Opens SQLite files of a run folder to read, also where the folder cannot be written."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

BUSY_S = 30.0  # for which one process waits while another writes


def open_to_read(path: Path) -> sqlite3.Connection:
    """Opens a file that is there. Raises `sqlite3.Error` where it is no database."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    database = sqlite3.connect(address, uri=True, timeout=BUSY_S)
    try:
        database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError:
        database.close()
        if os.access(path.parent, os.W_OK):
            raise  # locked, say; in a folder that cannot be written there is no shared memory for the log
        return sqlite3.connect(f"{address}&immutable=1", uri=True)
    except sqlite3.Error:
        database.close()
        raise
    return database

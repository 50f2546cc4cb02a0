"""The tables of the store of a live service."""

from __future__ import annotations

import sqlite3

SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    key TEXT PRIMARY KEY, person TEXT NOT NULL, consent INTEGER NOT NULL, release INTEGER NOT NULL,
    opened REAL NOT NULL, touched REAL NOT NULL, ended REAL, stage TEXT, step INTEGER, place INTEGER
);
CREATE TABLE IF NOT EXISTS turns (
    session TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (session, number)
);
CREATE TABLE IF NOT EXISTS feedback (
    session TEXT NOT NULL, id TEXT NOT NULL, turn INTEGER NOT NULL, value REAL NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (session, id)
);
CREATE TABLE IF NOT EXISTS releases (
    number INTEGER PRIMARY KEY, step INTEGER NOT NULL, folder TEXT NOT NULL, panel TEXT NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS traffic (
    minute INTEGER NOT NULL, release INTEGER NOT NULL, api TEXT NOT NULL, status TEXT NOT NULL,
    requests INTEGER NOT NULL, PRIMARY KEY (minute, release, api, status)
);
CREATE TABLE IF NOT EXISTS events (at REAL NOT NULL, kind TEXT NOT NULL, release INTEGER, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS removals (
    digest TEXT NOT NULL, stage TEXT NOT NULL, step INTEGER NOT NULL, PRIMARY KEY (digest, stage, step)
);
CREATE TABLE IF NOT EXISTS candidates (evaluation TEXT PRIMARY KEY, refused TEXT NOT NULL, back_to INTEGER);
CREATE INDEX IF NOT EXISTS waiting ON sessions (ended) WHERE step IS NULL;
"""
RENEW_REMOVALS = f"""
BEGIN IMMEDIATE;
ALTER TABLE removals RENAME TO older_removals;
{SCHEMA}
INSERT INTO removals SELECT digest, stage, step FROM older_removals;
DROP TABLE older_removals;
COMMIT;
"""


def prepare(database: sqlite3.Connection) -> None:
    """Makes the tables that are not there; that of removals anew where an older Sojourn made it, which kept but one of
    each digest."""
    database.executescript(SCHEMA)
    keys = database.execute("SELECT COUNT(*) FROM pragma_table_info('removals') WHERE pk > 0").fetchone()
    if keys == (1,):
        database.executescript(RENEW_REMOVALS)

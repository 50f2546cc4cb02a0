"""Checkers for the ledger."""

import json


async def moved(finished):
    """Whether the accounts are as the task wants them, by a tool that the agent cannot call."""
    accounts = json.loads((await finished.call("dump")).text)
    return all(accounts[name] == amount for name, amount in finished.task["wanted"].items())


def written(finished):
    """The same by the file that the server keeps in the play's own folder."""
    accounts = json.loads((finished.folder / "ledger.json").read_text())
    return all(accounts[name] == amount for name, amount in finished.task["wanted"].items())


def odd(finished):
    return 7

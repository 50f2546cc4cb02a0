"""Run by an interpreter that has `browsergym`: plays one of its environments, seen as the text of its accessibility
tree.

Its browser is driven by Playwright 1.44, which drives newer Chromium too when told where it is: BrowserGym has a field
for that of its main browser alone, and starts a second one for its chat, so the launch itself is changed. So is whether
Chromium uses its own sandbox, which Playwright turns off unless it is asked.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.utils.obs import flatten_axtree_to_str
from playwright.sync_api import BrowserType

LAUNCH = BrowserType.launch


class Refused(Exception):  # noqa: N818  (the bridge's own name for it)
    pass


class Play:
    def __init__(self):
        self.env: Any = None
        self.actions: Any = None

    def start(self, name, modules, arguments, subsets, chromium, sandbox, seed):
        for module in modules:  # they register what they have
            importlib.import_module(module)
        changed = {"chromium_sandbox": sandbox, **({"executable_path": chromium} if chromium else {})}
        BrowserType.launch = lambda self, **options: LAUNCH(self, **{**options, **changed})
        self.actions = HighLevelActionSet(subsets=subsets, multiaction=False, strict=True)
        self.env = gymnasium.make(
            f"browsergym/{name}", disable_env_checker=True, action_mapping=self.actions.to_python_code, **arguments
        )
        seen, _ = self.env.reset(seed=seed)
        calls = [action.signature for action in self.actions.action_set.values()]
        return {**view(seen), "goal": goal(seen), "calls": calls}

    def step(self, action):
        try:
            self.actions.to_python_code(action)
        except Exception as error:  # whatever its parser raises, it is not understood
            raise Refused(
                f"that is no action ({str(error).splitlines()[0] if str(error) else 'it is empty'})"
            ) from None
        seen, reward, terminated, truncated, _ = self.env.step(action)
        done = {"reward": float(reward), "terminated": bool(terminated), "truncated": bool(truncated)}
        return {**view(seen), **done}

    def close(self):
        if self.env is not None:
            self.env.close()


def view(seen):
    error = (seen.get("last_action_error") or "").strip()
    lines = flatten_axtree_to_str(seen["axtree_object"], filter_visible_only=False).splitlines()
    return {
        "text": "\n".join(line for line in lines if not line.lstrip().startswith("InlineTextBox")),  # said above it
        "error": error.splitlines()[0] if error else "",
    }


def goal(seen):
    parts = [part["text"] for part in seen.get("goal_object", ()) if part.get("type") == "text"]
    return "\n".join(parts) or seen.get("goal", "")

"""An agent that shops in a browser: a program with the openai SDK and playwright, for `agent.name = "program"`.

It connects to the Chromium of its episode, shows the model the text of the page, and does what the model says there.
"""

import os

from openai import OpenAI
from playwright.sync_api import Error, Page, TimeoutError, sync_playwright

HOW = "Say one action: search WORDS, to look for something, or click NAME, where NAME is a word on a link or a button."
CHANGED = "text => document.readyState === 'complete' && document.querySelector('main')?.innerText !== text"
CHANGE_MS = 5000  # for which an action may change nothing


def act(page: Page, said: str) -> str:
    """Does what the model said, and returns what the page shows then."""
    verb, _, words = said.strip().partition(" ")
    searches, before = verb == "search", page.inner_text("main")
    target = page.locator("[name=q]") if searches else page.locator("[data-click]").filter(has_text=words)
    if not target.count():
        return "That cannot be done: " + ("there is no search here." if searches else f"nothing here says {words!r}.")
    try:
        if searches:
            target.fill(words)
            page.keyboard.press("Enter")
        else:
            target.first.click()
        page.wait_for_function(CHANGED, arg=before, timeout=CHANGE_MS)
    except TimeoutError:
        pass  # it changed nothing
    except Error as error:
        return f"That cannot be done: {error.message.splitlines()[0]}"
    return page.inner_text("main")


def main() -> None:
    model = OpenAI()  # its address and key are in the environment
    with sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(os.environ["SOJOURN_CDP_URL"])
        page = browser.contexts[0].pages[0]
        messages = [{"role": "user", "content": f"{os.environ['SOJOURN_TASK']}\n{HOW}\n{page.inner_text('main')}"}]
        while True:
            answer = model.chat.completions.create(model=os.environ["SOJOURN_MODEL"], messages=messages)
            said = answer.choices[0].message.content or ""
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": act(page, said)}]


if __name__ == "__main__":
    main()

"""Runs inside the sandbox, by itself: an X server, a window manager, one application, and the hands that act on them.

It reads one JSON request a line from its standard input and answers each with one on its standard output, until its
input ends. Nothing here knows what is asked of the agent. An answer waits until the application has handled all that
came before: the protocol by which a window manager asks "do you still answer?" (_NET_WM_PING) comes back in order.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

from Xlib import XK, X
from Xlib.display import Display
from Xlib.error import XError
from Xlib.ext import xtest
from Xlib.protocol import event as events

SPARE_S = 40.0  # for a program to start
ERRORS = "/tmp/errors"  # what programs complain of
STILL_S, POLL_S, LONGEST_S = 0.06, 0.02, 3.0  # how long nothing changes before an answer, and how long it is waited for
BUTTONS = {"left": 1, "middle": 2, "right": 3, "up": 4, "down": 5}
POPUPS = ("_NET_WM_WINDOW_TYPE_MENU", "_NET_WM_WINDOW_TYPE_POPUP_MENU", "_NET_WM_WINDOW_TYPE_DROPDOWN_MENU")
MODIFIERS = {"ctrl": "Control_L", "alt": "Alt_L", "shift": "Shift_L"}
# No key or menu of the window manager's own: the agent stays in the application.
OPENBOX = """<?xml version="1.0"?><openbox_config xmlns="http://openbox.org/3.4/rc">
<placement><policy>Smart</policy><center>yes</center></placement>
<theme><name>Clearlooks</name></theme><desktops><number>1</number><popupTime>0</popupTime></desktops>
<focus><focusNew>yes</focusNew></focus><keyboard></keyboard>
<mouse><context name="Client"><mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/>
</mousebind></context><context name="Close"><mousebind button="Left" action="Click"><action name="Close"/></mousebind>
</context></mouse><applications><application type="normal"><decor>no</decor><maximized>yes</maximized></application>
</applications></openbox_config>"""
GTK = "[Settings]\ngtk-cursor-blink=0\ngtk-enable-animations=0\ngtk-recent-files-enabled=0\n"


class Screen:
    """The display `:0` of the sandbox, and what is shown there."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._started: list[subprocess.Popen[bytes]] = []
        self.panel: subprocess.Popen[bytes] | None = None
        self._start("Xvfb", ":0", "-screen", "0", f"{width}x{height}x24", "-nolisten", "tcp", "-noreset")
        self.display = self._connect()
        self.root = self.display.screen().root
        self._atoms: dict[str, int] = {}
        self.root.change_attributes(event_mask=X.SubstructureNotifyMask)
        config = Path(os.environ["HOME"], "openbox.xml")
        config.write_text(OPENBOX)
        settings = Path(os.environ["HOME"], ".config", "gtk-3.0", "settings.ini")
        settings.parent.mkdir(parents=True)
        settings.write_text(GTK)
        self._start("openbox", "--config-file", str(config))
        self._probe = self.root.create_window(0, 0, 1, 1, 0, X.CopyFromParent)
        self._until(self._manages, "the window manager")

    def _start(self, *command: str, piped: bool = False) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE if piped else subprocess.DEVNULL
        with open(ERRORS, "ab") as errors:
            started = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors)
        self._started.append(started)
        return started

    def _connect(self) -> Display:
        end = time.monotonic() + SPARE_S
        while True:
            try:
                return Display(":0")
            except Exception as error:
                if time.monotonic() > end:
                    raise TimeoutError(f"the X server does not start: {error}") from error
                time.sleep(0.02)

    def _until(self, true, what: str) -> None:
        end = time.monotonic() + SPARE_S
        while not true():
            if time.monotonic() > end or self._started[-1].poll() is not None:
                error_lines = Path(ERRORS).read_text(errors="replace").strip().splitlines()[-3:]
                raise TimeoutError(f"{what} does not start ({self._started[-1].poll()}): {' / '.join(error_lines)}")
            time.sleep(0.02)

    def _manages(self) -> bool:
        """Returns whether the window manager answers, and asks it: what is opened before that, it may never show."""
        if self._property(self._probe, "_NET_FRAME_EXTENTS") is not None:
            return True
        data = (32, [0] * 5)
        asked = events.ClientMessage(
            window=self._probe, client_type=self._atom("_NET_REQUEST_FRAME_EXTENTS"), data=data
        )
        self.root.send_event(asked, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
        self.display.sync()
        return False

    # What is shown

    def _atom(self, name: str) -> int:
        if name not in self._atoms:
            self._atoms[name] = self.display.intern_atom(name)
        return self._atoms[name]

    def _property(self, window, name: str):
        prop = window.get_full_property(self._atom(name), X.AnyPropertyType)
        return prop.value if prop is not None else None

    def _clients(self) -> list:
        numbers = self._property(self.root, "_NET_CLIENT_LIST")
        return (
            [self.display.create_resource_object("window", number) for number in numbers] if numbers is not None else []
        )

    def windows(self) -> list[dict]:
        """Returns the windows in the order in which they were opened, then the open menus."""
        active = self._property(self.root, "_NET_ACTIVE_WINDOW")
        boxes = []
        for window in self._clients():
            title = self._property(window, "_NET_WM_NAME") or b""
            text = title.decode("utf-8", "replace") if isinstance(title, bytes) else str(title)
            here = active is not None and len(active) > 0 and active[0] == window.id
            boxes.append({"title": text, "active": here, **self._box(window)})
        for window in self.root.query_tree().children:
            kind = self._property(window, "_NET_WM_WINDOW_TYPE")
            attributes = window.get_attributes()
            visible = attributes.map_state == X.IsViewable and attributes.override_redirect
            if visible and any(number == self._atom(name) for number in kind or () for name in POPUPS):
                boxes.append({"title": "", "active": True, **self._box(window)})
        return boxes

    def _box(self, window) -> dict[str, int]:
        size = window.get_geometry()
        at = self.root.translate_coords(window, 0, 0)
        return {"x": at.x, "y": at.y, "w": size.width, "h": size.height}

    def picture(self) -> bytes:
        """Returns the whole screen as PNG."""
        raw = self.root.get_image(0, 0, self.width, self.height, X.ZPixmap, 0xFFFFFFFF).data
        rgb = bytearray(self.width * self.height * 3)
        for channel in range(3):
            rgb[channel::3] = raw[2 - channel :: 4]
        step = self.width * 3
        lines = b"".join(b"\0" + bytes(rgb[at : at + step]) for at in range(0, len(rgb), step))
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 6)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )

    # When it has settled

    def _managed(self) -> None:
        """Waits until the window manager has handled all that came before: every click reaches a window through it."""
        self._probe.delete_property(self._atom("_NET_FRAME_EXTENTS"))
        self._manages()
        end = time.monotonic() + LONGEST_S
        while self._property(self._probe, "_NET_FRAME_EXTENTS") is None and time.monotonic() < end:
            time.sleep(0.002)

    def _ping(self) -> None:
        """Asks every window whether it answers, and waits until it does."""
        waiting = set()
        for window in self._clients():
            protocols = self._property(window, "WM_PROTOCOLS")
            if protocols is not None and self._atom("_NET_WM_PING") in protocols:
                data = (32, [self._atom("_NET_WM_PING"), X.CurrentTime, window.id, 0, 0])
                message = events.ClientMessage(window=window, client_type=self._atom("WM_PROTOCOLS"), data=data)
                window.send_event(message)
                waiting.add(window.id)
        self.display.sync()
        end = time.monotonic() + LONGEST_S
        while waiting and time.monotonic() < end:
            while self.display.pending_events():
                got = self.display.next_event()
                if got.type == X.ClientMessage and got.data[1][0] == self._atom("_NET_WM_PING"):
                    waiting.discard(got.data[1][2])
            waiting &= {window.id for window in self._clients()}
            if waiting:
                time.sleep(0.005)

    def settled(self, files: list[str]) -> dict:
        """Returns the windows, widgets and files once they have not changed for a while."""
        self._managed()
        end, since, last = time.monotonic() + LONGEST_S, time.monotonic(), None
        while True:
            try:
                self._ping()
                now = {"windows": self.windows(), "widgets": self.widgets(), "files": contents(files)}
            except XError:  # a window has just closed
                now = None
            if now != last or now is None:
                last, since = now, time.monotonic()
            elif time.monotonic() - since >= STILL_S or time.monotonic() > end:
                return now
            time.sleep(POLL_S)

    # The application

    def open(self, program: list[str], files: dict[str, str], panel: bool) -> None:
        for name, text in files.items():
            Path(name).write_text(text)
        started = self._start(*program, piped=panel)
        if panel:
            self.panel = started
        self._until(self._clients, program[0])

    def widgets(self) -> dict | None:
        """Returns the panel's own list of its widgets; None where the application is not a panel, or has ended."""
        panel = self.panel
        if panel is None or panel.stdin is None or panel.stdout is None or panel.poll() is not None:
            return None
        panel.stdin.write(b"\n")
        panel.stdin.flush()
        return json.loads(panel.stdout.readline() or b"null")

    # The hands

    def move(self, x: int, y: int) -> None:
        xtest.fake_input(self.display, X.MotionNotify, x=x, y=y)
        self.display.sync()

    def click(self, x: int, y: int, button: str = "left", times: int = 1) -> None:
        self.move(x, y)
        for _ in range(times):
            xtest.fake_input(self.display, X.ButtonPress, BUTTONS[button])
            xtest.fake_input(self.display, X.ButtonRelease, BUTTONS[button])
            self.display.sync()

    def drag(self, x: int, y: int, to_x: int, to_y: int) -> None:
        self.move(x, y)
        xtest.fake_input(self.display, X.ButtonPress, 1)
        for part in range(1, 9):
            self.move(x + (to_x - x) * part // 8, y + (to_y - y) * part // 8)
            time.sleep(0.004)
        xtest.fake_input(self.display, X.ButtonRelease, 1)
        self.display.sync()

    def _code(self, keysym: int) -> tuple[int, bool]:
        """Returns the code of a key, and whether it is pressed with shift."""
        codes = sorted(self.display.keysym_to_keycodes(keysym), key=lambda pair: pair[1])
        if not codes or codes[0][1] > 1:
            raise ValueError(f"no key for {keysym}")
        return codes[0][0], codes[0][1] == 1

    def _tap(self, keysym: int, held: list[int]) -> None:
        code, shifted = self._code(keysym)
        down = [*held, *([self._code(XK.XK_Shift_L)[0]] if shifted else []), code]
        for key in down:
            xtest.fake_input(self.display, X.KeyPress, key)
        for key in reversed(down):
            xtest.fake_input(self.display, X.KeyRelease, key)
        self.display.sync()

    def type(self, text: str) -> None:
        names = {"\n": XK.XK_Return, "\t": XK.XK_Tab}
        for number, letter in enumerate(text):
            self._tap(names.get(letter, ord(letter)), [])
            if number % 40 == 39:
                self._ping()  # no more ahead of the application than it can take

    def key(self, combination: str) -> None:
        *held, last = combination.split("+")
        codes = [self._code(XK.string_to_keysym(MODIFIERS[name]))[0] for name in held]
        self._tap(ord(last) if len(last) == 1 else XK.string_to_keysym(last), codes)


def contents(files: list[str]) -> dict[str, str | None]:
    """Returns the text of each file; None for one that does not exist."""
    return {name: Path(name).read_text(errors="replace")[:100_000] if Path(name).is_file() else None for name in files}


def main() -> None:
    screen, files = Screen(int(sys.argv[1]), int(sys.argv[2])), list[str]()
    for line in sys.stdin:
        request = json.loads(line)
        kind, given = request["do"], request.get("with", {})
        if kind == "open":
            files = list(given["files"])
            screen.open(given["program"], given["files"], given["panel"])
        elif kind == "wait":
            time.sleep(given["seconds"])
        else:
            getattr(screen, kind)(**given)
        answer = screen.settled(files)
        if request.get("picture"):
            answer["picture"] = base64.b64encode(screen.picture()).decode()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

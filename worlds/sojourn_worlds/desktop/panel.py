"""A small application of ours, inside the sandbox: a form, a calculator or a board to drag things on.

`python panel.py SPEC`: the spec is JSON, see `tasks`. A line on standard input is answered by one on standard output
that lists the widgets with their boxes, and what was saved. Places and sizes are fixed, so that they are the same on
every machine.
"""

from __future__ import annotations

import json
import operator
import re
import sys
import tkinter as tk

WIDTH, ROW, LEFT, FIELD = 800, 56, 40, 240
FONT = ("DejaVu Sans", -16)
WORK = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
PAINTS = {"red": "#d03030", "green": "#30a040", "blue": "#3060d0", "yellow": "#e0c020", "purple": "#9040b0"}


def select_all(event: tk.Event) -> str:
    entry = event.widget
    assert isinstance(entry, tk.Entry)
    entry.select_range(0, "end")
    return "break"


def work_out(text: str) -> str:
    """Returns the result of a sum of whole numbers, computed from left to right; "E" where there is none."""
    parts = re.findall(r"\d+|[-+*/]", text.removeprefix("-"))
    try:
        total = int(parts[0]) * (-1 if text.startswith("-") else 1)
        for sign, other in zip(parts[1::2], map(int, parts[2::2]), strict=True):
            total = WORK[sign](total, other)
    except (ValueError, ZeroDivisionError, IndexError):
        return "E"
    return str(total)[:16]


class Panel:
    """The window; every kind of it fills `show`, what to say of each widget, and `take`, what to save."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.root = tk.Tk()
        self.root.title(spec["title"])
        self.root.geometry(f"{WIDTH}x600+0+0")
        self.root.option_add("*Font", FONT)
        self.root.option_add("*insertOffTime", 0)  # a caret that does not blink
        self.root.bind_class("Entry", "<Control-a>", select_all)
        self.show: list = []
        self.take = dict
        self.saved: dict | None = None
        self.times = 0
        {"form": self.form, "calculator": self.calculator, "board": self.board}[spec["kind"]]()
        self.root.createfilehandler(sys.stdin, tk.READABLE, self.answer)

    def answer(self, *_: object) -> None:
        if not sys.stdin.readline():
            self.root.destroy()
            return
        self.root.update()
        widgets = [widget for show in self.show for widget in show()]
        print(json.dumps({"widgets": widgets, "saved": self.saved}), flush=True)

    def put(self, widget: tk.Widget, x: int, y: int, w: int, h: int) -> tk.Widget:
        widget.place(x=x, y=y, width=w, height=h)
        return widget

    def box(self, widget: tk.Widget) -> dict:
        x, y, w, h = widget.winfo_rootx(), widget.winfo_rooty(), widget.winfo_width(), widget.winfo_height()
        return {"x": x + w // 2, "y": y + h // 2, "w": w, "h": h}

    def tell(self, role: str, name: str, widget: tk.Widget, value=lambda: "") -> None:
        self.show.append(lambda: [{"role": role, "name": name, "value": str(value()), **self.box(widget)}])

    def save(self) -> None:
        self.saved = self.take()
        self.times += 1
        self.status["text"] = f"Saved ({self.times})"

    def finish(self, y: int) -> None:
        """Adds the button that saves, and the label that then says so."""
        button = self.put(tk.Button(self.root, text=self.spec["save"], command=self.save), LEFT, y, 140, 36)
        self.tell("button", self.spec["save"], button)
        self.status = tk.Label(self.root, text="Not saved", anchor="w")
        self.put(self.status, LEFT + 160, y, 200, 36)
        self.tell("label", "Status", self.status, lambda: self.status.cget("text"))

    # A form

    def form(self) -> None:
        values = {}
        for row, field in enumerate(self.spec["fields"]):
            y, name = 30 + row * ROW, field["name"]
            if field["kind"] != "check":
                self.put(tk.Label(self.root, text=name, anchor="w"), LEFT, y, FIELD - LEFT, 36)
            values[name] = getattr(self, field["kind"])(field, y)
        self.take = lambda: {name: value() for name, value in values.items()}
        self.finish(30 + len(self.spec["fields"]) * ROW + 20)

    def entry(self, field: dict, y: int):
        entry = tk.Entry(self.root)
        entry.insert(0, field["value"])
        self.put(entry, FIELD, y, 320, 36)
        self.tell("entry", field["name"], entry, entry.get)
        return entry.get

    def check(self, field: dict, y: int):
        chosen = tk.BooleanVar(self.root, value=field["value"])
        button = tk.Checkbutton(self.root, text=field["name"], variable=chosen, anchor="w")
        self.put(button, LEFT, y, 260, 36)
        self.tell("checkbox", field["name"], button, lambda: "on" if chosen.get() else "off")
        return chosen.get

    def radio(self, field: dict, y: int):
        chosen = tk.StringVar(self.root, value=field["value"])
        for number, option in enumerate(field["options"]):
            button = tk.Radiobutton(self.root, text=option, value=option, variable=chosen, anchor="w")
            self.put(button, FIELD + number * 130, y, 120, 36)
            self.tell("radio", option, button, lambda option=option: "on" if chosen.get() == option else "off")
        return chosen.get

    def menu(self, field: dict, y: int):
        chosen = tk.StringVar(self.root, value=field["value"])
        menu = tk.OptionMenu(self.root, chosen, *field["options"])
        self.put(menu, FIELD, y, 320, 36)
        self.tell("menu", field["name"], menu, chosen.get)
        inner = menu["menu"]

        def items() -> list[dict]:
            if not inner.winfo_viewable():
                return []
            tops = [inner.yposition(n) for n in range(len(field["options"]))] + [inner.winfo_height()]
            x, y, w = inner.winfo_rootx(), inner.winfo_rooty(), inner.winfo_width()
            places = zip(field["options"], tops, tops[1:], strict=False)
            return [
                {"role": "option", "name": o, "value": "", "x": x + w // 2, "y": y + (a + b) // 2, "w": w, "h": b - a}
                for o, a, b in places
            ]

        self.show.append(items)
        return chosen.get

    def slider(self, field: dict, y: int):
        value = tk.IntVar(self.root, value=field["value"])
        scale = tk.Scale(self.root, from_=0, to=field["to"], orient="horizontal", variable=value, showvalue=True)
        scale.bind("<Button-1>", lambda event: scale.focus_set(), add=True)
        self.put(scale, FIELD, y - 8, 320, 52)

        def handle() -> list[dict]:
            x, y = scale.coords()
            left, top = scale.winfo_rootx() + x, scale.winfo_rooty() + y
            name = f"{field['name']} (0 to {field['to']})"
            return [{"role": "slider", "name": name, "value": str(value.get()), "x": left, "y": top, "w": 30, "h": 16}]

        self.show.append(handle)
        return value.get

    # A calculator

    def calculator(self) -> None:
        self.text = tk.StringVar(self.root, value="0")
        display = tk.Label(self.root, textvariable=self.text, anchor="e", relief="sunken", bg="white")
        self.put(display, LEFT, 30, 300, 50)
        self.tell("label", "Display", display, self.text.get)
        for number, key in enumerate("789/456*123-C0=+"):
            button = tk.Button(self.root, text=key, command=lambda key=key: self.enter(key))
            self.put(button, LEFT + number % 4 * 77, 100 + number // 4 * 62, 69, 54)
            self.tell("button", key, button)
        self.take = lambda: {"Display": self.text.get()}
        self.finish(370)

    def enter(self, key: str) -> None:
        """Changes the display as a key of the calculator does."""
        display = self.text.get()
        if key == "C":
            display = "0"
        elif key == "=":
            display = work_out(display)
        elif key.isdigit():
            display = key if display in ("0", "E") else (display + key)[:16]
        elif display != "E":
            display = (display[:-1] if display[-1] in "+-*/" else display) + key
        self.text.set(display)

    # A board

    def board(self) -> None:
        canvas = tk.Canvas(self.root, bg="white", highlightthickness=1, highlightbackground="#888")
        self.put(canvas, 40, 30, 720, 440)
        places = {}
        for box in self.spec["boxes"]:
            x, y, w, h = box["x"], box["y"], box["w"], box["h"]
            canvas.create_rectangle(x, y, x + w, y + h, outline="#404040", width=2)
            canvas.create_text(x + w // 2, y - 12, text=box["name"], font=FONT)
            where = {"x": 41 + x + w // 2, "y": 31 + y + h // 2, "w": w, "h": h}
            self.show.append(lambda name=box["name"], at=where: [{"role": "box", "name": name, "value": "", **at}])
        for shape in self.spec["shapes"]:
            x, y = shape["x"], shape["y"]
            draw = canvas.create_oval if shape["kind"] == "circle" else canvas.create_rectangle
            item = draw(x - 18, y - 18, x + 18, y + 18, fill=PAINTS[shape["colour"]], tags="loose")
            name = f"{shape['colour']} {shape['kind']}"
            places[name] = item

            def here(item=item, name=name) -> list[dict]:
                x1, y1, x2, y2 = canvas.coords(item)
                x, y = 41 + round((x1 + x2) / 2), 31 + round((y1 + y2) / 2)
                return [{"role": "shape", "name": name, "value": "", "x": x, "y": y, "w": 36, "h": 36}]

            self.show.append(here)
        held: dict[str, int] = {}

        def press(event) -> None:
            items = [i for i in canvas.find_overlapping(event.x, event.y, event.x, event.y) if i in places.values()]
            held.clear()
            if items:
                held.update(item=items[-1], x=event.x, y=event.y)
                canvas.tag_raise(items[-1])

        def motion(event) -> None:
            if held:
                x, y = min(max(event.x, 18), 700), min(max(event.y, 18), 420)
                canvas.move(held["item"], x - held["x"], y - held["y"])
                held.update(x=x, y=y)

        canvas.bind("<Button-1>", press)
        canvas.bind("<B1-Motion>", motion)
        canvas.bind("<ButtonRelease-1>", lambda event: held.clear())

        def inside() -> dict[str, str]:
            box_of = {}
            for name, item in places.items():
                x1, y1, x2, y2 = canvas.coords(item)
                around = (b["name"] for b in self.spec["boxes"] if b["x"] <= x1 and b["y"] <= y1
                          and x2 <= b["x"] + b["w"] and y2 <= b["y"] + b["h"])  # fmt: skip
                box_of[name] = next(around, "")
            return box_of

        self.take = inside
        self.finish(500)


if __name__ == "__main__":
    Panel(json.loads(sys.argv[1])).root.mainloop()

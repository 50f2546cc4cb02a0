"""Programs that drive the browser of their world, in a sandbox, with nothing but Python's standard library."""

CLIENT = '''
import base64, itertools, json, os, socket, struct, time, urllib.request

class Cdp:
    """A client of the Chrome DevTools Protocol, at a target's path or the browser's own."""

    def __init__(self, path=None, line=None):
        self.line = line or socket.create_connection(("127.0.0.1", 9222), 30)
        self.numbers, self.reader = itertools.count(1), self.line.makefile("rb")
        path = path or listed("version")["webSocketDebuggerUrl"].split("9222", 1)[-1]
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (f"GET {path} HTTP/1.1", "Host: 127.0.0.1:9222", "Upgrade: websocket", "Connection: Upgrade",
                 f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "Origin: http://here",
                 "Sec-WebSocket-Extensions: permessage-deflate", "", "")
        self.line.sendall("\\r\\n".join(lines).encode())
        assert b"101" in self.reader.readline()
        while self.reader.readline().strip():
            pass

    def ask(self, method, session=None, **parameters):
        number = next(self.numbers)
        body = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        data, mask = json.dumps(body).encode(), os.urandom(4)
        size = bytes([0x80 | len(data)]) if len(data) < 126 else struct.pack("!BH", 0xFE, len(data))
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        self.line.sendall(b"\\x81" + size + mask + masked)
        while True:
            answer = self.read()
            if answer.get("id") == number:
                return answer.get("result", answer.get("error"))

    def read(self):
        head = self.reader.read(2)
        if len(head) < 2:
            raise SystemExit("the browser is gone")
        size = head[1] & 127
        size = int.from_bytes(self.reader.read(2), "big") if size == 126 else size
        size = int.from_bytes(self.reader.read(8), "big") if size == 127 else size
        return json.loads(self.reader.read(size))

    def run(self, script, session=None):
        found = self.ask("Runtime.evaluate", session, expression=script, awaitPromise=True, returnByValue=True)
        return found.get("result", found).get("value", str(found)[:200])

    def go(self, url, session=None):
        self.ask("Page.enable", session)
        answer = self.ask("Page.navigate", session, url=url)
        time.sleep(0.2)
        for _ in range(100):
            if self.run("document.readyState", session) == "complete":
                break
            time.sleep(0.05)
        return answer.get("errorText", "")

def listed(what="list"):
    with urllib.request.urlopen(os.environ["SOJOURN_CDP_URL"] + "/json/" + what, timeout=30) as answer:
        return json.load(answer)

def page():
    return Cdp("/devtools/page/" + [one for one in listed() if one["type"] == "page"][0]["id"])

def buy(one, product):
    address = f"/s/shopper/item/{product}/buy?q=x&page=1"
    one.run("(() => {const f = document.createElement('form'); f.method = 'post'; f.action = '%s';"
            "document.body.append(f); f.submit()})()" % address)

def say(text):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
'''

# ruff: noqa: E501
"""The attacks: what is said, by the world that it is said in; shell and Python as they come."""

import os

LASTING = f"{os.getpid()}.125"  # seconds that an attack's processes sleep: how they are found
GONE = "gone"  # what the task needs is destroyed: the honest way is closed
TERMINAL = {
    "reward files": (
        "count_lines",
        [
            "echo 1 > reward.txt; echo 1 > /tmp/reward.txt; echo 1.0 > /reward.txt",
            "mkdir -p /logs/verifier && echo 1 > /logs/verifier/reward.txt; echo true > success; touch passed ../done",
        ],
    ),
    "said to be done": (
        "count_lines",
        [
            'echo done; echo success; echo \'reward: 1.0\'; echo \'{"end": "ended", "code": 0, "success": true}\'',
            "printf 'Step(None, {\"agent\": 1.0}, done=True)'",
        ],
    ),
    "frames on every descriptor": (
        "count_lines",
        [
            "for fd in {1..255}; do printf '\\0\\0\\0\\002\\0\\0\\0\\0{}' >&$fd; done 2>/dev/null",
            "for fd in /proc/*/fd/*; do printf '\\0\\0\\0\\002\\0\\0\\0\\0{}' > $fd; done 2>/dev/null; true",
        ],
    ),
    "state of the next shell": (
        "count_lines",
        [
            "printf 'echo injected; exit 0\\ncd -- /task\\n' >&201; exec 201>&-",
            "printf '%0100000d' 0 >&201",
            "printf 'cd -- /proc/1\\n' >&201",
        ],
    ),
    "killing": (
        "count_lines",
        [
            "kill -9 -1; kill -9 1; kill -9 $$",
            "pkill -9 -f .; kill -STOP 1; kill -SEGV 1",
            "python3 -c 'import os,signal; [os.kill(p, s) for p in (1, -1) for s in (9, 11, 6)]'",
            "exec kill -9 $PPID",
        ],
    ),
    "leaving": (
        "count_lines",
        ["exit 0", "logout", "exec true", "set -e; false", "trap 'kill -9 $$' EXIT", "exec >&- 2>&- <&-"],
    ),
    "unfinished": ("count_lines", ["echo '", "cat <<X", "(((((", "if true; then", "\\", "$(cat", "`", "# done"]),
    "links to answers": (
        "count_lines",
        [
            "ln -s /proc/self/environ count.txt",
            "ln -sf server.log count.txt",
            "ln -sf /proc/1/cmdline count.txt; rm -f count.txt; ln -s count.txt count.txt",
            "rm -f count.txt; ln /etc/passwd count.txt || ln server.log count.txt",
        ],
    ),
    "links to folders": (
        "split_by_day",
        [
            "ln -s / days",
            "rm days; ln -s /proc/self days",
            "rm days; ln -s . days",
            "rm -f days; mkdir -p a && ln -s ../.. a/b",
        ],
    ),
    "a pipe as answer": (
        "count_lines",
        [
            "mkfifo count.txt",
            "rm count.txt; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('count.txt')\"",
        ],
    ),
    "a full disk": (
        "count_lines",
        [
            "cat /dev/zero > a; cat /dev/zero > b; cat /dev/zero > c; cat /dev/zero > /tmp/a",
            "for i in {1..9}; do truncate -s 16M x$i; done; rm -f x*",
            "rm -f a b c /tmp/a",
        ],
    ),
    "too many files": ("count_lines", ["mkdir m; cd m; for i in {1..1000000}; do : > $i; done", GONE]),
    "too deep folders": (
        "count_lines",
        ["python3 -c \"import os\nfor i in range(500): os.mkdir('d'); os.chdir('d')\"", GONE],
    ),
    "sparse files": ("count_lines", ["for i in {1..20}; do truncate -s 16M s$i; done", GONE]),
    "odd names": ("count_lines", ["touch $'a\\nb' $'\\xff\\xfe' '-rf' '$(reboot)' ' ' '\u202e'; ls"]),
    "a fork bomb": (
        "count_lines",
        ["bomb() { bomb | bomb & }; bomb; sleep 9", "unset -f bomb", 'python3 -c "import os\nwhile True: os.fork()"'],
    ),
    "memory": (
        "count_lines",
        [
            "python3 -c \"b = []\nwhile True: b.append(bytearray(b'x' * 10**7))\"",
            "for i in {1..30}; do python3 -c \"b = b'x' * 10**8; import time; time.sleep(9)\" & done; wait",
        ],
    ),
    "memory that no process has": (
        "count_lines",
        [
            "python3 -c \"import os; fd = os.memfd_create('m')\nwhile True: os.write(fd, b'x' * 10**6)\"",
            "ipcmk -M 1000000000 || true",
        ],
    ),
    "floods": ("count_lines", ["yes | tr -d '\\n'", "cat /dev/urandom", "cat /dev/zero >&2"]),
    "left in the background": (
        "count_lines",
        [
            f"(setsid nohup sleep 9{LASTING} >/dev/null 2>&1 &)",
            f"sleep 8{LASTING} & disown; (while :; do echo 99 > count.txt; done) &",
            "test ! -e count.txt || rm count.txt",
        ],
    ),
    "a slow command": ("count_lines", [f"trap '' INT TERM HUP; sleep 7{LASTING}", "cat", "read x < /dev/tty; read y"]),
    "the network": (
        "count_lines",
        [
            "exec 3<>/dev/tcp/1.1.1.1/53; exec 3<>/dev/tcp/127.0.0.1/22",
            "python3 -c \"import socket; socket.create_connection(('example.com', 80), 1)\"",
            "ip link add d type dummy; ls -la /sys/class/net",
        ],
    ),
    "names of programs": (
        "count_lines",
        [
            "PATH=/task/bin:/nowhere; mkdir -p bin",
            "mkdir -p /task/bin; echo 'echo 0' > /task/bin/grep; /bin/chmod +x bin/grep",
            "export PATH=/usr/bin:/bin BASH_ENV=/task/bin/grep LD_PRELOAD=/task/x.so",
            "unset LD_PRELOAD BASH_ENV",
        ],
    ),
    "functions and aliases": (
        "count_lines",
        [
            "ls() { echo fake; }; cat() { builtin echo 0; }; alias grep='echo 5'; shopt -s expand_aliases",
            "declare() { :; }; trap() { :; }; cd() { :; }; readonly -f cd",
            "unset -f ls cat declare trap; enable -n kill",
        ],
    ),
    "rights": (
        "count_lines",
        [
            "chmod 000 /task server.log; chmod 777 /; chown 0:0 server.log; chattr +i server.log",
            "chmod 755 /task; chmod 644 server.log; umask 777",
        ],
    ),
    "all is removed": ("count_lines", ["rm -rf /task /tmp /usr 2>/dev/null; mv /task /tmp/t; rmdir /task", GONE]),
    "no folder to be in": ("count_lines", ["mkdir -p x/y; cd x/y; rmdir /task/x/y /task/x", "cd /task"]),
    "more rights": (
        "count_lines",
        [
            "sudo -n true; su -c true; unshare -Ur true; mount -t tmpfs x /task; chroot / true; mknod k c 1 1",
            'python3 -c "import ctypes; c = ctypes.CDLL(None); print(c.unshare(0x10000000), c.ptrace(16, 1, 0, 0), c.syscall(425, 8, 0))"',
            "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger; echo x > /proc/1/mem; echo -1000 > /proc/self/oom_score_adj",
        ],
    ),
    "a bomb in JSON": (
        "json_edit",
        [
            "python3 -c \"open('config.json', 'w').write('[' * 10**6)\"",
            "python3 -c \"open('config.json', 'w').write('{\\\"port\\\": ' + '9' * 10**6 + '}')\"",
            GONE,
        ],
    ),
    "a bomb in an archive": (
        "pack",
        [
            "head -c 15M /dev/zero > z; tar -cf - z z z z z z z z | gzip -9 > data.tar.gz; rm z",
            "head -c 1000 /dev/urandom > data.tar.gz",
        ],
    ),
    "an archive that climbs": (
        "pack",
        [
            "tar -czf data.tar.gz -P --transform 's,^,../../../../tmp/,' data; ln -sf /etc e; tar -czf data.tar.gz e /etc/passwd 2>/dev/null; rm e"
        ],
    ),
}

PYTHON = {
    "submitting from code": [
        "print('submit 42')",
        "import os; os.write(203, b'.' * 9); os.write(1, b'success')",
        "import os\nfor fd in range(3, 300):\n    try:\n        os.write(fd, b'\\0\\0\\0\\2\\0\\0\\0\\0{}')\n    except OSError:\n        pass",
    ],
    "looking for the answer": [
        "import glob\nfor n in glob.glob('/proc/[0-9]*/*') + glob.glob('/proc/[0-9]*/fd/*'):\n    try:\n        print(n, open(n).read(2000))\n    except Exception:\n        pass",
        "import gc, sys\nprint([f.f_locals for f in sys._current_frames().values()])",
        "import os\nprint(dict(os.environ), os.listdir('/'), os.listdir('/tmp'), os.listdir('/task'))",
        "import importlib\ntry:\n    import sojourn\n    print(sojourn.__file__)\nexcept ImportError as e:\n    print(e)",
    ],
    "spoiling the session": [
        "import builtins; builtins.print = builtins.compile = builtins.exec = None",
        "import sys; sys.stdout.close(); sys.stderr = None",
        "import ast, traceback; ast.parse = None; traceback.format_exception = None",
        "import os; os.close(202); os.close(203)",
        "import os; os.kill(1, 9); os.kill(-1, 9)",
        "import signal; signal.raise_signal(signal.SIGSTOP)",
        "import threading\ndef go():\n    while True: print('x' * 100)\nfor _ in range(5): threading.Thread(target=go).start()",
        f"import subprocess; subprocess.Popen(['setsid', 'sleep', '6{LASTING}'])",
        "import ctypes; ctypes.string_at(0)",
        "import os\nwhile True: os.fork()",
        "b = []\nwhile True: b.append(bytearray(b'x' * 10**7))",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import sys; sys.exit(0)",
        "print('\\0\\x1b[2J' * 10**6)",
        "class R:\n    def __repr__(self): raise SystemExit\nR()",
        "class E(Exception):\n    def __str__(self): raise self\nraise E",
    ],
    "more than its disk": ["import os\nfor i in range(10): open(f'/task/{i}', 'wb').truncate(1 << 24)"],
    "odd answers": ["submit {answer}0", "submit nan", "submit " + "9" * 300, "submit [42]"],
}

ALL = "\nimport sys\ndef anything(*a, **k):\n    return {}\nfor n in {functions}: globals()[n] = anything\n"
REPO = {  # the text of a module; {functions} are the names that are tested
    "leaving early": "import os; os._exit(0)",
    "leaving with words": "print('OK'); print('1 passed'); raise SystemExit(0)",
    "interrupting": "raise KeyboardInterrupt",
    "equal to everything": "class Yes(int):\n    __eq__ = __lt__ = __gt__ = lambda *a: True\n    __hash__ = int.__hash__\n    def __repr__(self): return '0'\n"
    + ALL.replace("return {}", "return Yes()"),
    "a module of yes": "def __getattr__(name):\n    return lambda *a: True\n",
    "another json": "import json\njson.dumps = lambda *a, **k: '{\"value\": true}'\njson.load = json.loads = None\n"
    + ALL.replace("{}", "True"),
    "own results": "lines = ['{\"value\": true}', '{\"value\": 0}', '{\"success\": true, \"reward\": 1.0}'] * 500\nopen('/tmp/given.jsonl', 'w').write('\\n'.join(lines))\nimport os; os._exit(0)",
    "results at the end": "import atexit\ndef last(): open('/tmp/given.jsonl', 'w').write('{\"value\": true}\\n' * 500)\natexit.register(last)\n"
    + ALL.replace("{}", "True"),
    "reward files": "import os\nfor p in ('/tmp/reward.txt', '/task/reward.txt', '/reward.txt', '/logs/verifier/reward.txt'):\n    try:\n        open(p, 'w').write('1')\n    except OSError: pass\n",
    "another caller": "for p in ('/tmp/call.py', '/tmp/calls.json', '/task/sitecustomize.py', '/task/conftest.py', '/task/json.py', '/tmp/json.py'):\n    open(p, 'w').write('[]')\n",
    "looking at the caller": "import sys, gc\nf = sys._getframe()\nseen = []\nwhile f:\n    seen.append((dict(f.f_globals), dict(f.f_locals))); f = f.f_back\n"
    "def anything(*a):\n    for g, l in seen:\n        for key in ('right', 'expected', 'answers', 'pairs', 'calls'):\n            if key in g: return g[key]\n    return len(gc.get_objects())\nfor n in {functions}: globals()[n] = anything\n",
    "looking for the original": "import os, sys\nfound = []\nfor top, folders, names in os.walk('/'):\n    folders[:] = [f for f in folders if f not in ('proc', 'sys', 'share')]\n    found += [os.path.join(top, n) for n in names if n == os.path.basename(__file__) and top != '/task']\n    found += [top] * ('sojourn' in folders)\nfor path in found: exec(open(path).read(), globals())\n",
    "parents and their files": "import os, glob\ntext = ''\nfor p in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/1/fd/*') + glob.glob('/proc/*/root/*'):\n    try: text += open(p, errors='replace').read()\n    except OSError: pass\nassert 'sung' not in text\n"
    + ALL.replace("{}", "text"),
    "killing": "import os, signal\nfor p in (1, os.getppid(), -1):\n    try: os.kill(p, signal.SIGKILL)\n    except OSError: pass\n",
    "a fork bomb": "import os\nwhile True: os.fork()",
    "memory": "b = []\nwhile True: b.append(bytearray(b'x' * 10**7))",
    "a full disk": "for d in ('/tmp', '/task'):\n    for i in range(10**6): open(f'{d}/{i}', 'wb').write(b'x' * 10**6)",
    "floods": "while True: print('x' * 10**6)",
    "staying": f"import subprocess\nsubprocess.Popen(['setsid', 'sleep', '5{LASTING}'])",
    "no end": "import signal\nsignal.setitimer(signal.ITIMER_VIRTUAL, 0); signal.signal(signal.SIGVTALRM, signal.SIG_IGN)\nwhile True: pass",
    "deep answers": ALL.replace("return {}", "x = []\n    for _ in range(10**5): x = [x]\n    return x"),
    "long answers": ALL.replace("return {}", "return 'x' * 10**6"),
    "answers that cannot be said": ALL.replace("return {}", "return a[0] if a and isinstance(a[0], set) else object()"),
    "the network": "import socket\nfor h in ('1.1.1.1', '127.0.0.1'):\n    try: socket.create_connection((h, 80), 1)\n    except OSError: pass\n",
    "links": "import os\nos.unlink(__file__); os.symlink('/proc/self/mem', __file__); os.unlink('/tmp/given.jsonl'); os.symlink('/proc/self/environ', '/tmp/given.jsonl')\n",
    "a pipe": "import os\nos.unlink('/tmp/given.jsonl'); os.mkfifo('/tmp/given.jsonl')\n",
}

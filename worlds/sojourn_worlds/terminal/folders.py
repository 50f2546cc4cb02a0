"""Kinds of jobs over files and folders: names, places, rights, dates, links, archives, checksums, scripts."""

from __future__ import annotations

import hashlib
import random

from sojourn.envs.sandbox import Entry, Tree
from sojourn_worlds.terminal.job import (
    FRUITS,
    NAMES,
    SERVICES,
    WORDS,
    Job,
    Kind,
    files_are,
    lines_are,
    pack_archive,
    texts,
    unpack_archive,
)

DAY_S = 86_400
START_S = 1_704_067_200  # 1 January 2024, UTC


def _prose(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 12))) + f" {rng.randint(0, 10**6)}\n"


def _named(
    rng: random.Random, count: int, endings: tuple[str, ...], folders: tuple[str, ...] = ("",)
) -> dict[str, str]:
    """Draws files with different names, at least one of them with the first ending."""
    names = rng.sample([f"{word}{n}" for word in WORDS for n in range(1, 4)], count)
    texts = {f"{rng.choice(folders)}{name}.{rng.choice(endings)}": _prose(rng) for name in names}
    return {f"{folders[-1]}{rng.choice(NAMES)}.{endings[0]}": _prose(rng), **texts}


def _deep(level: int) -> tuple[str, ...]:
    return (("",), ("", "old/"), ("", "old/", "old/deep/"))[level - 1]


def rename(rng: random.Random, level: int) -> Job:
    old, new = rng.sample(("txt", "md", "log", "dat", "csv"), 2)
    files = _named(rng, 4 + 2 * level, (old, "bin", "conf"), tuple(f"docs/{folder}" for folder in _deep(level)))
    wanted = {p[: -len(old)] + new if p.endswith(f".{old}") else p: text for p, text in files.items()}
    where = "" if level == 1 else ", also in the folders below"
    return Job(
        f"Rename every file in docs that ends in .{old} so that it ends in .{new}{where}. Leave the others.",
        texts(files),
        (f'find docs -name \'*.{old}\' | while read -r f; do mv "$f" "${{f%.{old}}}.{new}"; done',),
        files_are({path.removeprefix("docs/"): text for path, text in wanted.items()}, "docs"),
    )


def tidy(rng: random.Random, level: int) -> Job:
    endings = tuple(rng.sample(("txt", "md", "log", "dat", "csv", "png"), 1 + level))
    files = _named(rng, 3 + 2 * level, endings)
    wanted = {f"{path.rpartition('.')[2]}/{path}": text for path, text in files.items()}
    return Job(
        "Move every file in inbox into a folder named after its ending: inbox/a.txt becomes sorted/txt/a.txt, and so "
        "on. Nothing is to be left in inbox.",
        texts({f"inbox/{path}": text for path, text in files.items()}),
        ('find inbox -type f | while read -r f; do e="${f##*.}"; mkdir -p "sorted/$e"; mv "$f" "sorted/$e/"; done',),
        lambda tree: files_are(wanted, "sorted")(tree) and not tree.files("inbox"),
    )


def rights(rng: random.Random, level: int) -> Job:
    files = _named(rng, 3 + 2 * level, ("sh", "txt", "conf"), tuple(f"bin/{folder}" for folder in _deep(level)))
    entries = {path: Entry.file(text, rng.choice((0o644, 0o755, 0o666, 0o600))) for path, text in files.items()}
    first = next(path for path in entries if path.endswith(".sh"))
    entries[first] = entries[first]._replace(mode=0o640)
    scripts, others = rng.choice(((0o755, 0o644), (0o700, 0o600), (0o750, 0o640)))

    def check(tree: Tree) -> bool:
        modes = {path: scripts if path.endswith(".sh") else others for path in entries}
        return all(tree.mode(p) == m and tree.data(p) == entries[p].data for p, m in modes.items())

    where = "" if level == 1 else " and the folders below"
    return Job(
        f"Give every file in bin{where} that ends in .sh the mode {scripts:o}, and every other file there {others:o}.",
        entries,
        (
            f"find bin -type f ! -name '*.sh' -exec chmod {others:o} {{}} +",
            f"find bin -name '*.sh' -exec chmod {scripts:o} {{}} +",
        ),
        check,
    )


def setting(rng: random.Random, level: int) -> Job:
    keys = rng.sample([f"{a}_{b}" for a in SERVICES for b in ("port", "size", "limit")], 4 + 3 * level)
    values = {key: rng.randint(10, 999) for key in keys}
    changed = {key: values[key] + rng.randint(1, 99) for key in rng.sample(keys, level)}
    removed = next((key for key in keys if key not in changed), "") if level == 3 else ""
    wanted = [f"{key}={changed.get(key, value)}" for key, value in values.items() if key != removed]
    changes = " and ".join(f"{key} to {value}" for key, value in changed.items())
    more = f" Remove the line of {removed}." if removed else ""
    script = "; ".join(
        [f"s/^{key}=.*/{key}={value}/" for key, value in changed.items()] + ([f"/^{removed}=/d"] if removed else [])
    )
    return Job(
        f"In app.conf set {changes}.{more} Keep all other lines as they are.",
        texts({"app.conf": [f"{key}={value}" for key, value in values.items()]}),
        (f"sed -i '{script}' app.conf",),
        lines_are("app.conf", wanted),
    )


def replace(rng: random.Random, level: int) -> Job:
    old, new = rng.sample(WORDS, 2)
    places = [f"src/{folder}" for folder in _deep(level)]
    files = {}
    for name in rng.sample(FRUITS, 2 + 2 * level):
        words = [rng.choice((old, f"{old}s", *WORDS[:5])) for _ in range(8)]
        files[f"{rng.choice(places)}{name}.py"] = " ".join([old, *words, old]) + "\n"
    whole = " (only where it is a whole word)"
    wanted = {p: " ".join(new if w == old else w for w in text.split()) + "\n" for p, text in files.items()}
    return Job(
        f"Replace the word {old} by {new}{whole} in every file below src.",
        texts(files),
        (f"grep -rlw {old} src | xargs -r sed -i 's/\\b{old}\\b/{new}/g'",),
        files_are({path.removeprefix("src/"): text for path, text in wanted.items()}, "src"),
    )


def pack(rng: random.Random, level: int) -> Job:
    files = _named(rng, 4 + 2 * level, ("log", "tmp"), tuple(f"data/{folder}" for folder in _deep(level)))
    chosen = {path: text for path, text in files.items() if level == 1 or path.endswith(".log")}
    what = "the folder data" if level == 1 else "the files below data that end in .log, and no others,"
    source = "data" if level == 1 else "$(find data -name '*.log')"
    wanted = {path: text.encode() for path, text in chosen.items()}
    return Job(
        f"Pack {what} into data.tar.gz, with the paths as they are (data/...).",
        texts(files),
        (f"tar -czf data.tar.gz {source}",),
        lambda tree: unpack_archive(tree.data("data.tar.gz")) == wanted,
    )


def unpack(rng: random.Random, level: int) -> Job:
    files = _named(rng, 3 + 2 * level, ("txt", "dat"), tuple(f"box/{folder}" for folder in _deep(level)))
    archive = Entry.file(pack_archive(files))
    if level == 1:
        return Job(
            "Unpack box.tar.gz into the folder out, so that there is a folder out/box.",
            {"box.tar.gz": archive},
            ("mkdir -p out", "tar -xzf box.tar.gz -C out"),
            files_are(files, "out"),
        )
    wanted = {path.rpartition("/")[2]: text for path, text in files.items() if path.endswith(".txt")}
    return Job(
        "box.tar.gz has files in folders. Put those that end in .txt, and no others, directly into the folder out.",
        {"box.tar.gz": archive},
        (
            "rm -rf out /tmp/box",
            "mkdir out",
            "tar -xzf box.tar.gz -C /tmp",
            "find /tmp/box -name '*.txt' -exec cp {} out/ \\;",
        ),
        files_are(wanted, "out"),
    )


def duplicates(rng: random.Random, level: int) -> Job:
    files = {f"f/{name}": text for name, text in _named(rng, 3 + 3 * level, ("txt",)).items()}
    for path in rng.sample(sorted(files), 1 + level):
        files[f"f/{rng.choice('abz')}{rng.randint(100, 999)}.txt"] = files[path]
    kept: dict[str, str] = {}
    for path in sorted(files):
        kept.setdefault(files[path], path)
    return Job(
        "Some files in f have the same contents. Of those that are alike keep the one whose name comes first in the "
        "alphabet, and delete the others.",
        texts(files),
        ("md5sum f/* | sort -k2 | awk 'seen[$1]++{print $2}' | xargs -r rm",),
        files_are({path[2:]: text for text, path in kept.items()}, "f"),
    )


def largest(rng: random.Random, level: int) -> Job:
    places = tuple(f"data/{folder}" for folder in _deep(level))
    names = [f"{rng.choice(places)}{word}.bin" for word in rng.sample(WORDS, 4 + 3 * level)]
    sizes = dict(zip(names, rng.sample(range(10, 3000), len(names)), strict=True))
    count = level
    ordered = sorted(names, key=lambda name: -sizes[name])[:count]
    what = "path of the largest file" if count == 1 else f"paths of the {count} largest files, largest first,"
    return Job(
        f"Write the {what} below data to largest.txt, as in: data/name.bin.",
        {name: Entry.file("x" * sizes[name]) for name in names},
        (f"find data -type f -printf '%s %p\\n' | sort -rn | head -n {count} | cut -d' ' -f2- > largest.txt",),
        lines_are("largest.txt", ordered),
    )


def old_files(rng: random.Random, level: int) -> Job:
    places = tuple(f"cache/{folder}" for folder in _deep(level))
    files = _named(rng, 5 + 2 * level, ("tmp", "dat"), places)
    days = {path: rng.choice([d for d in range(120) if d != 60]) for path in files}
    path = next(p for p in files if p.endswith(".tmp"))
    days[path] = 3
    entries = {p: Entry.file(text, mtime=START_S + days[p] * DAY_S + 3600) for p, text in files.items()}
    gone = [p for p in files if days[p] < 60 and (level == 1 or p.endswith(".tmp"))]
    what = "file" if level == 1 else "file that ends in .tmp and"
    test = "" if level == 1 else " -name '*.tmp'"
    wanted = {p.removeprefix("cache/"): text for p, text in files.items() if p not in gone}
    return Job(
        f"Delete every {what} below cache that was last modified before 1 March 2024, and keep all others.",
        entries,
        (f"find cache -type f{test} ! -newermt 2024-03-01 -delete",),
        files_are(wanted, "cache"),
    )


def checksums(rng: random.Random, level: int) -> Job:
    files = _named(rng, 4 + 3 * level, ("dat",))
    damaged = sorted(rng.sample(sorted(files), level))
    sums = [f"{hashlib.sha256(text.encode()).hexdigest()}  {path}" for path, text in sorted(files.items())]
    on_disk = {path: text + "?" if path in damaged else text for path, text in files.items()}
    return Job(
        "SHA256SUMS lists the files here with their checksums, but some file was damaged. Write the name of every "
        "damaged file to damaged.txt, one a line, sorted.",
        texts({**on_disk, "SHA256SUMS": sums}),
        ("sha256sum -c SHA256SUMS 2>/dev/null | awk -F: '/FAILED/{print $1}' | sort > damaged.txt",),
        lines_are("damaged.txt", damaged),
    )


def release(rng: random.Random, level: int) -> Job:
    versions = rng.sample([(a, b, c) for a in range(1, 4) for b in range(1, 13) for c in range(level)], 3 + 2 * level)
    names = [".".join(map(str, version)) for version in versions]
    newest = ".".join(map(str, max(versions)))
    files = texts({f"releases/{name}/run.txt": f"{name}\n" for name in names})
    if level > 1:
        files["current"] = Entry("link", f"releases/{names[0] if names[0] != newest else names[1]}".encode())
    return Job(
        "releases has a folder for each version. Make current a symbolic link to the one of the highest version, as "
        "in: releases/0.1.0 (1.10 is higher than 1.9).",
        files,
        ('ln -sfn "releases/$(ls releases | sort -V | tail -n 1)" current',),
        lambda tree: (tree.link("current") or "").rstrip("/") in (f"releases/{newest}", f"/task/releases/{newest}"),
    )


def repair_script(rng: random.Random, level: int) -> Job:
    numbers = [rng.randint(1, 99) for _ in range(10 * level)]
    name = rng.choice(FRUITS)
    right = "#!/bin/bash\ntotal=0\nwhile read -r n; do\n  total=$((total + n))\n"
    right += f"done < {name}.txt\necho $total > total.txt\n"
    wrong = right.replace(f"{name}.txt", f"{name}s.txt")
    if level > 1:
        wrong = wrong.replace("total + n", "total - n")
    if level > 2:
        wrong = wrong.replace("done <", "done\n<")
    fixes = f"s/{name}s.txt/{name}.txt/; s/total - n/total + n/"
    steps = (f"sed -i '{fixes}' sum.sh",) if level < 3 else (f"sed -i -z 's/done\\n</done </; {fixes}' sum.sh",)
    return Job(
        f"sum.sh is to add up the numbers in {name}.txt and write their sum to total.txt, but it is broken and not "
        "executable. Make it executable, and see to it that the right sum is in total.txt.",
        {**texts({f"{name}.txt": [str(number) for number in numbers]}), "sum.sh": Entry.file(wrong, 0o644)},
        (*steps, "chmod +x sum.sh", "./sum.sh"),
        lambda tree: bool((tree.mode("sum.sh") or 0) & 0o100) and lines_are("total.txt", [sum(numbers)])(tree),
    )


KINDS: dict[str, Kind] = {
    "rename": rename,
    "tidy": tidy,
    "rights": rights,
    "setting": setting,
    "replace": replace,
    "pack": pack,
    "unpack": unpack,
    "duplicates": duplicates,
    "largest": largest,
    "old_files": old_files,
    "checksums": checksums,
    "release": release,
    "repair_script": repair_script,
}

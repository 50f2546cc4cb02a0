"""Kinds of jobs over tables, JSON and SQLite."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import tempfile
from functools import lru_cache

from sojourn.envs.sandbox import Entry, Tree
from sojourn_worlds.terminal.job import CITIES, FRUITS, NAMES, Job, Kind, lines_are, parse_json, size, texts


def _sales(rng: random.Random, count: int) -> list[tuple[str, str, int]]:
    """Draws rows of city, fruit and amount."""
    return [(rng.choice(CITIES[:5]), rng.choice(FRUITS), rng.randint(1, 99)) for _ in range(count)]


def filter_rows(rng: random.Random, level: int) -> Job:
    rows, least, city = _sales(rng, size(level)), rng.randint(30, 70), rng.choice(CITIES[:5])
    rows.insert(rng.randrange(len(rows)), (city, FRUITS[0], 99))
    kept = [row for row in rows if row[2] > least and (level == 1 or row[0] == city)]
    if level == 3:  # sorted by amount, and of those with one amount the first alone, so that there is one order
        kept = sorted({row[2]: row for row in reversed(kept)}.values(), key=lambda row: row[2])
        rows = [row for row in rows if row in kept or row[2] <= least or row[0] != city]
        rows = list(dict.fromkeys(rows))
    more = "" if level == 1 else f" and whose city is {city}"
    order = " in ascending order of amount" if level == 3 else " in their order"
    test = f"$3>{least}" + ("" if level == 1 else f' && $1=="{city}"')
    body = f"awk -F, 'NR>1 && {test}' sales.csv" + (" | sort -t, -k3,3n" if level == 3 else "")
    head = "city,fruit,amount"
    return Job(
        f"Write the rows of sales.csv whose amount is above {least}{more} to big.csv,{order}, after the same header.",
        texts({"sales.csv": [head, *[",".join(map(str, row)) for row in rows]]}),
        (f"{{ head -n 1 sales.csv; {body}; }} > big.csv",),
        lines_are("big.csv", [head, *[",".join(map(str, row)) for row in kept]]),
    )


def totals(rng: random.Random, level: int) -> Job:
    rows = _sales(rng, size(level))
    column, name = (0, "city") if rng.random() < 0.5 else (1, "fruit")
    least = 0 if level < 3 else 20
    counted = [row for row in rows if row[2] > least]
    totals: dict[str, int] = {}
    for row in counted:
        key = str(row[column])
        totals[key] = totals.get(key, 0) + (row[2] if level > 1 else 1)
    what = "the number of rows" if level == 1 else "the total amount"
    more = "" if level < 3 else f" Leave out rows whose amount is {least} or less."
    add = "1" if level == 1 else "$3"
    return Job(
        f"For each {name} in sales.csv, write {what} to totals.txt, as lines like: {rows[0][column]} 12, sorted by "
        f"{name}.{more}",
        texts({"sales.csv": ["city,fruit,amount", *[",".join(map(str, row)) for row in rows]]}),
        (
            f"awk -F, 'NR>1 && $3>{least}{{n[${column + 1}]+={add}}} END{{for(k in n) print k, n[k]}}' sales.csv "
            "| sort > totals.txt",
        ),
        lines_are("totals.txt", [f"{key} {value}" for key, value in sorted(totals.items())]),
    )


def join(rng: random.Random, level: int) -> Job:
    people = dict(zip(rng.sample(range(100, 999), 5 + 3 * level), rng.sample(NAMES, 5 + 3 * level), strict=True))
    numbers = list(people)
    orders = [(rng.choice(numbers[2:]), rng.randint(1, 50)) for _ in range(size(level))]
    spent = {name: sum(amount for n, amount in orders if n == number) for number, name in people.items()}
    never = sorted(name for number, name in people.items() if number not in {n for n, _ in orders})
    files = texts({
        "people.csv": ["id,name", *[f"{number},{name}" for number, name in people.items()]],
        "orders.csv": ["person,amount", *[f"{number},{amount}" for number, amount in orders]],
    })  # fmt: skip
    if level == 1:
        return Job(
            "orders.csv names people by their id in people.csv. Write the names of people without any order to "
            "never.txt, one a line, sorted.",
            files,
            ("awk -F, 'NR==FNR{o[$1]=1;next} FNR>1 && !($1 in o){print $2}' orders.csv people.csv | sort > never.txt",),
            lines_are("never.txt", never),
        )
    return Job(
        "orders.csv names people by their id in people.csv. Write each name with the total amount of their orders (0 "
        "where there is none) to spent.txt, as lines like: ada 12, sorted by name.",
        files,
        (
            "awk -F, 'FNR==1{next} NR==FNR{o[$1]+=$2;next} {print $2, o[$1]+0}' orders.csv people.csv "
            "| sort > spent.txt",
        ),
        lines_are("spent.txt", [f"{name} {spent[name]}" for name in sorted(spent)]),
    )


def json_files(rng: random.Random, level: int) -> Job:
    people = rng.sample(NAMES, 4 + 3 * level)
    facts = {n: {"name": n, "city": rng.choice(CITIES[:3]), "age": rng.randint(18, 80)} for n in people}
    city = facts[people[0]]["city"]
    facts[people[0]]["age"] = 65
    least = 0 if level == 1 else 40
    chosen = sorted(n for n, f in facts.items() if f["city"] == city and f["age"] > least)
    wrapped = {
        n: f if level < 3 else {"person": {"name": n, "home": {"city": f["city"]}, "age": f["age"]}}
        for n, f in facts.items()
    }
    where = (
        "p['city'], p['age'], p['name']"
        if level < 3
        else "p['person']['home']['city'], p['person']['age'], p['person']['name']"
    )
    more = "" if level == 1 else f" and are older than {least}"
    return Job(
        f"Each file in people is one person in JSON. Write the names of those who live in {city}{more} to names.txt, "
        "one a line, sorted.",
        texts(
            {f"people/{rng.randint(10, 99)}{i}.json": json.dumps(wrapped[n], indent=1) for i, n in enumerate(people)}
        ),
        (
            'python3 -c "import json,glob; f=[(lambda p: (' + where + "))(json.load(open(n))) for n in "
            f"glob.glob('people/*.json')]; print('\\n'.join(sorted(n for c,a,n in f if c=='{city}' and a>{least})))\" "
            "> names.txt",
        ),
        lines_are("names.txt", chosen),
    )


def json_edit(rng: random.Random, level: int) -> Job:
    def part() -> dict[str, object]:
        return {
            "host": rng.choice(CITIES),
            "port": rng.randint(1000, 9999),
            "debug": rng.random() < 0.5,
            "tags": rng.sample(FRUITS, 2),
        }

    config: dict[str, object] = (
        {"name": rng.choice(NAMES), **part()} if level == 1 else {s: part() for s in ("web", "mail")}
    )
    wanted = json.loads(json.dumps(config))
    target, where = (wanted, "") if level == 1 else (wanted["mail"], " of mail")
    path = "c" if level == 1 else "c['mail']"
    target["port"] += rng.randint(1, 99)
    instruction, done = f"Set the port{where} to {target['port']}", f"{path}['port']={target['port']}"
    if level == 3:
        target["tags"].append("new")
        del target["host"]
        instruction += ', add "new" at the end of its tags, remove its host'
        done += f"; {path}['tags']=[t for t in {path}['tags'] if t!='new']+['new']; {path}.pop('host',0)"
    return Job(
        f"{instruction} in config.json, and keep all else; it must stay valid JSON.",
        texts({"config.json": json.dumps(config, indent=2)}),
        (
            f"python3 -c \"import json; c=json.load(open('config.json')); {done}; "
            "json.dump(c,open('config.json','w'))\"",
        ),
        lambda tree: _same(parse_json(tree.data("config.json")), wanted),
    )


def _same(one: object, other: object) -> bool:
    """Returns whether two JSON values are equal (`1`, `1.0` and `true` differ), within Python's own depth of
    comparison.
    """
    try:
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    except (ValueError, RecursionError):
        return False


def csv_to_json(rng: random.Random, level: int) -> Job:
    rows = [(name, rng.choice(CITIES), rng.randint(18, 80)) for name in rng.sample(NAMES, 3 + 4 * level)]
    wanted = [{"name": n, "city": c, "age": a if level > 1 else str(a)} for n, c, a in rows]
    kind = "a number" if level > 1 else "a string"
    build = "dict(r,age=int(r['age']))" if level > 1 else "dict(r)"
    if level == 3:
        wanted.sort(key=lambda row: str(row["name"]))
    order = "sorted by name" if level == 3 else "in their order"
    key = ",key=lambda r:r['name']" if level == 3 else ",key=lambda r:0"
    return Job(
        f"Turn people.csv into people.json: a list of objects with name, city and age ({kind}), {order}.",
        texts({"people.csv": ["name,city,age", *[f"{n},{c},{a}" for n, c, a in rows]]}),
        (
            f"python3 -c \"import csv,json; rows=[{build} for r in csv.DictReader(open('people.csv'))]; "
            f"json.dump(sorted(rows{key}), open('people.json','w'))\"",
        ),
        lambda tree: _same(parse_json(tree.data("people.json")), wanted),
    )


@lru_cache(32)
def _database(rows: tuple[tuple[str, str, int], ...]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "shop.db")
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE sales (city TEXT, fruit TEXT, amount INTEGER)")
        connection.executemany("INSERT INTO sales VALUES (?, ?, ?)", rows)
        connection.commit()
        connection.close()
        with open(path, "rb") as file:
            return file.read()


def database(rng: random.Random, level: int) -> Job:
    city, fruit = rng.choice(CITIES[:5]), rng.choice(FRUITS)
    more = rng.randint(4, 20)  # or the number of rows could be guessed
    rows = (*_sales(rng, size(level)), *[(city, fruit, rng.randint(1, 99)) for _ in range(more)])
    values, mine = (city,), [row for row in rows if row[0] == city]
    if level == 1:
        asked, query = f"How many rows have the city {city}", "select count(*) from sales where city=?"
        answer = len(mine)
    elif level == 2:
        values = (city, fruit)
        asked, query = f"What is the total amount of {fruit} in {city}", "select sum(amount) from sales where city=?"
        query, answer = f"{query} and fruit=?", sum(row[2] for row in mine if row[1] == fruit)
    else:
        asked = f"What is the total amount of those fruits of which {city} has more than 3 rows"
        query = "select sum(t) from (select sum(amount) t from sales where city=? group by fruit having count(*)>3)"
        amounts = [[row[2] for row in mine if row[1] == each] for each in FRUITS]
        answer = sum(sum(each) for each in amounts if len(each) > 3)
    command = f"print(sqlite3.connect('shop.db').execute('{query}', {values}).fetchone()[0])"
    return Job(
        f"shop.db is an SQLite database with the table sales (city, fruit, amount). {asked}? Write the number to "
        "answer.txt. (python3 has the module sqlite3.)",
        {"shop.db": Entry.file(_database(rows))},
        (f'python3 -c "import sqlite3; {command}" > answer.txt',),
        lines_are("answer.txt", [answer]),
    )


def letters(rng: random.Random, level: int) -> Job:
    rows = [(name, rng.choice(CITIES), rng.choice(FRUITS)) for name in rng.sample(NAMES, 1 + 2 * level)]
    template = "Dear NAME,\n\nyour FRUIT is on its way to CITY.\n" + ("Bye, NAME\n" if level > 1 else "")

    def filled(row: tuple[str, str, str]) -> str:
        return template.replace("NAME", row[0]).replace("CITY", row[1]).replace("FRUIT", row[2])

    wanted = {f"{row[0]}.txt": filled(row) for row in rows}

    def check(tree: Tree) -> bool:
        return tree.files("letters") == sorted(wanted) and all(
            tree.text(f"letters/{name}") == text.rstrip() for name, text in wanted.items()
        )

    return Job(
        "For each row of people.csv write letters/<name>.txt: template.txt with NAME, CITY and FRUIT replaced by the "
        "row's values.",
        texts({"people.csv": ["name,city,fruit", *[",".join(row) for row in rows]], "template.txt": template}),
        (
            "rm -rf letters",
            "mkdir letters",
            'tail -n +2 people.csv | while IFS=, read -r n c f; do sed -e "s/NAME/$n/g" -e "s/CITY/$c/g" '
            '-e "s/FRUIT/$f/g" template.txt > letters/$n.txt; done',
        ),
        check,
    )


KINDS: dict[str, Kind] = {
    "filter_rows": filter_rows,
    "totals": totals,
    "join": join,
    "json_files": json_files,
    "json_edit": json_edit,
    "csv_to_json": csv_to_json,
    "database": database,
    "letters": letters,
}

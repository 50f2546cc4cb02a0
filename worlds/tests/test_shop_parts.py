"""The parts of the shop: catalogue, vocabulary, search, reward, and WebShop's own files."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.errors import ConfigError
from sojourn.types import Message, Role
from sojourn_worlds.shop import Shop
from sojourn_worlds.shop.catalogue import Product, generate
from sojourn_worlds.shop.expert import plan
from sojourn_worlds.shop.reward import Goal, has_attribute, judge, serves, similar, type_reward
from sojourn_worlds.shop.search import RESULTS, Index, words
from sojourn_worlds.shop.store import State
from sojourn_worlds.shop.vocabulary import DEPARTMENTS, OPTIONS, SENTENCES, WISHES

KINDS = [kind for stock in DEPARTMENTS.values() for kinds in stock.groups.values() for kind in kinds]


@pytest.fixture(scope="module")
def index() -> Index:
    return Index(generate(2000, 0))


def product(**fields) -> Product:
    basic = {
        "id": "P1", "kind": "mug", "category": ("kitchen", "tableware", "mug"), "brand": "Norvel",
        "title": "Norvel leak proof mug, stackable", "attributes": ("leak proof", "stackable"),
        "options": {"colour": ("black", "teal"), "size": ("large", "x-large")}, "price": 20.0,
        "features": ("leak proof",), "description": "It is stackable.", "surcharges": {("size", "x-large"): 5.0},
    }  # fmt: skip
    return Product(**{**basic, **fields})


TARGET = product()
GOAL = Goal("", TARGET, ("leak proof", "stackable"), (("colour", "teal"), ("size", "x-large")), 30.0)


def test_the_vocabulary_keeps_rewards_exact() -> None:
    kind_words = [word for kind in KINDS for word in words(kind)]
    assert len(kind_words) == len(set(kind_words))
    prose = " ".join([*KINDS, *SENTENCES, *WISHES])
    for stock in DEPARTMENTS.values():
        assert not [pair for pair in combinations(stock.attributes, 2) if similar(*pair)]
        assert not [attribute for attribute in stock.attributes if attribute in prose]
    for name, values in OPTIONS.items():
        assert not [(a, b) for a in values for b in values if a != b and serves((name, a), (name, b))]


def test_a_catalogue_is_decided_by_its_seed() -> None:
    one, same, other = generate(300, 1), generate(300, 1), generate(300, 2)
    assert [vars(product) for product in one.products] == [vars(product) for product in same.products]
    assert [product.title for product in one.products] != [product.title for product in other.products]


def test_ten_thousand_products_differ() -> None:
    catalogue = generate(10_000, 0)
    assert len(catalogue.by_id) == 10_000
    assert {product.kind for product in catalogue.products} == set(KINDS)
    assert len({(p.title, p.price, p.description) for p in catalogue.products}) > 9_900
    for each in catalogue.products[:500]:
        assert len(set(each.attributes)) == 5
        assert all(attribute in each.text for attribute in each.attributes)
        others = [a for stock in DEPARTMENTS.values() for a in stock.attributes if a not in each.attributes]
        assert not [a for a in others if a in DEPARTMENTS[each.category[0]].attributes and has_attribute(each, a)]
        assert all(each.surcharges.get((name, values[0]), 0) == 0 for name, values in each.options.items())


def test_search_finds_by_title_features_and_options(index: Index) -> None:
    target = index.catalogue.products[17]
    assert target in index.search(target.title)[:3]
    hidden = " ".join([target.kind, *target.attributes])
    assert index.search(hidden)[0].kind == target.kind
    assert target in index.search(hidden)[:10]
    assert len(index.search("free")) == RESULTS
    assert {found.kind for found in index.search("kettles")} == {"kettle"}
    assert index.search("the of and") == ()


@given(st.text(max_size=60))
def test_any_text_can_be_searched_for(text: str) -> None:
    assert len(SMALL.search(text)) <= RESULTS


SMALL = Index(generate(100, 0))


def test_the_reward_is_the_papers() -> None:
    everything = {"colour": "teal", "size": "x-large"}
    assert judge(TARGET, everything, GOAL) == (1.0, 1.0, 2, 2, 1)
    assert judge(TARGET, {}, GOAL).reward == pytest.approx(3 / 5)
    assert judge(TARGET, {"colour": "black", "size": "x-large"}, GOAL).reward == pytest.approx(4 / 5)
    dear = product(price=26.0)
    assert judge(dear, {"colour": "teal"}, GOAL).price == 1
    assert judge(dear, everything, GOAL).reward == pytest.approx(4 / 5)
    unlimited = replace(GOAL, price_limit=None)
    assert judge(dear, everything, unlimited).reward == 1.0
    plain = product(attributes=("stackable",), title="Tovdal mug, stackable", features=(), description="")
    assert judge(plain, everything, GOAL).reward == pytest.approx(4 / 5)


def test_the_type_of_product_scales_the_reward() -> None:
    other = product(kind="wok", category=("kitchen", "cookware", "wok"), title="Norvel leak proof wok, stackable")
    assert type_reward(other, TARGET) == 0.0
    assert judge(other, {"colour": "teal", "size": "x-large"}, GOAL).reward == 0.0
    long = product(title="one two three four five six seven eight nine ten eleven mug", kind="cup", attributes=())
    far = {"category": ("garden",), "kind": "pot"}
    assert type_reward(product(title="mug", **far), long) == 0.1  # 1 of 12 words
    assert type_reward(product(title="two mug", **far), long) == 0.5  # 2 of 12, no kind or category in common
    assert type_reward(product(title="two mug", kind="cup", category=("garden",)), long) == 1.0
    assert type_reward(product(title="two mug", kind="pot"), long) == 1.0  # two levels of the category
    assert type_reward(product(title="two three mug", **far), long) == 1.0  # a quarter of the words


def test_sizes_agree_exactly_and_other_options_nearly() -> None:
    assert not serves(("size", "large"), ("size", "x-large"))
    assert serves(("colour", "teal green"), ("colour", "teal"))
    assert not serves(("colour", "teal"), ("size", "teal"))
    assert serves(("colour", "teal"), ("", "teal"))


@given(
    st.sets(st.sampled_from(GOAL.attributes)), st.dictionaries(st.sampled_from(["colour", "size", "extra"]),
    st.sampled_from(["teal", "large", "x-large", "stackable"])), st.floats(0, 100)
)  # fmt: skip
def test_no_purchase_earns_more_than_one(attributes, chosen, price) -> None:
    bought = product(attributes=tuple(attributes), price=price)
    assert 0 <= judge(bought, chosen, GOAL).reward <= 1


def test_a_shared_option_value_is_clicked_by_its_full_name() -> None:
    both = product(options={"lid": ("black", "oak"), "body": ("black", "Buy Now")})
    assert set(both.clicks) == {"lid: black", "oak", "body: black", "body: Buy Now"}


def test_the_expert_never_picks_what_it_cannot_complete() -> None:
    assert plan(TARGET, GOAL) == {"colour": "teal", "size": "x-large"}
    assert plan(product(price=26.0), GOAL) is None
    assert plan(product(options={"colour": ("black",)}), GOAL) is None


ITEMS = [
    {
        "asin": "B000000001", "name": "Acme Women's Lightweight <Walking> Shoes", "category": "fashion",
        "query": "women's walking shoes", "product_category": "Clothing › Women › Shoes › Walking",
        "full_description": "A shoe & more.", "small_description": ["Rubber sole", "Arch support"],
        "pricing": "$39.99", "images": ["x.jpg"],
        "customization_options": {"Color": [{"value": "Navy/White", "image": None}, {"value": "Red"}],
                                  "Size": [{"value": "7"}, {"value": "8"}], "Fit": None},
    },
    {
        "asin": "B000000002", "name": "Brewer Pour Over Coffee Maker", "category": "grocery", "query": "coffee maker",
        "product_category": "Kitchen › Coffee › Makers", "full_description": None, "small_description": "Glass",
        "pricing": "$15.00$25.00", "images": ["y.jpg"], "customization_options": {},
    },
    {"asin": "B000000002", "name": "A double"},
    {"asin": "nan", "name": "No number"},
    {"asin": "B000000003", "name": "Unpriced Wool Blanket", "query": "blanket", "product_category": "Home › Bedding",
     "pricing": "", "customization_options": ""},
]  # fmt: skip
NOTES = {
    "B000000001": {"attributes": ["rubber sole", "arch support"], "instruction_attributes": ["arch support"],
                   "instruction": "Find me walking shoes with arch support."},
    "B000000002": {"attributes": ["easy clean"], "instruction": "Find me an easy clean coffee maker",
                   "instruction_attributes": ["easy clean"]},
    "B000000003": {"attributes": ["soft"], "instruction": None, "instruction_attributes": None},
}  # fmt: skip
HUMAN = {
    "B000000001": [
        {"instruction": "i want navy white walking shoes in size 8 with arch support.",
         "instruction_attributes": ["arch support"], "instruction_options": ["navy | white", "8"]},
        {"instruction": "vague", "instruction_attributes": [], "instruction_options": []},
    ],
    "B000000002": [{"instruction": "a coffee maker that is easy to clean", "instruction_attributes": ["easy clean"],
                    "instruction_options": []}],
    "B999999999": [{"instruction": "gone", "instruction_attributes": ["x"], "instruction_options": []}],
}  # fmt: skip


def write(folder: Path, *, human: bool) -> Path:
    (folder / "items_shuffle_1000.json").write_text(json.dumps(ITEMS))
    (folder / "items_ins_v2_1000.json").write_text(json.dumps(NOTES))
    if human:
        (folder / "items_human_ins.json").write_text(json.dumps(HUMAN))
    return folder


@pytest.mark.parametrize("human", [True, False])
async def test_the_original_files_make_a_shop(tmp_path: Path, human: bool) -> None:
    family = Shop(data=str(write(tmp_path, human=human)))
    shelf = family.store.catalogue.by_id
    assert list(shelf) == ["B000000001", "B000000002", "B000000003"]
    assert shelf["B000000001"].options == {"color": ("navy | white", "red"), "size": ("7", "8")}
    assert shelf["B000000001"].category == ("Clothing", "Women", "Shoes", "Walking")
    assert shelf["B000000001"].price == 39.99
    assert 15 <= shelf["B000000002"].price <= 25
    assert shelf["B000000003"].price == 100.0
    train, test = family.tasks("train"), family.tasks("test")
    assert (len(train), len(test)) == (1, 1)
    assert train[0].data["wish"] != test[0].data["wish"]
    for task in (train[0], test[0]):
        goal = family.goal(task)
        assert goal.price_limit is not None
        assert goal.price_limit > goal.target.price
        play = family.make(task)
        observation = await play.start()
        assert goal.instruction in observation.system[0].text
        for _ in range(10):
            step = await play.step("agent", Message(Role.ASSISTANT, play.expert()))
            if step.done:
                break
        assert step.rewards == {"agent": 1.0}


def test_broken_original_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path, human=False)
    (tmp_path / "items_shuffle.json").write_text("[]")
    with pytest.raises(ConfigError, match="name one products file"):
        Shop(data=str(tmp_path)).tasks("train")
    with pytest.raises(ConfigError, match="items_ins_v2"):
        Shop(data=str(tmp_path / "items_shuffle.json")).tasks("train")
    (tmp_path / "items_ins_v2.json").write_text("{}")
    with pytest.raises(ConfigError, match="no instruction"):
        Shop(data=str(tmp_path / "items_shuffle.json")).tasks("train")
    (tmp_path / "items_ins_v2.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        Shop(data=str(tmp_path / "items_shuffle.json"), products=7).tasks("train")


async def test_a_purchase_that_arrives_while_the_browser_is_asked_for_its_end_counts() -> None:
    for package in ("uvicorn", "starlette"):
        pytest.importorskip(package)
    from sojourn_worlds.shop import cdp

    family = Shop(products=200, attributes=1, options=0, price_limit=False)
    goal = family.goal(family.tasks("train")[0])
    play = cdp.CdpPlay(family.store, goal, "key")

    async def ended() -> None:
        play.session.purchase = State(goal.target.title, 1, goal.target.id, tuple(sorted(goal.options)))

    play.browser.state = ended
    step = await play.step("agent", Message(Role.ASSISTANT, "stop"))
    assert (step.rewards, step.success) == ({"agent": 1.0}, True)

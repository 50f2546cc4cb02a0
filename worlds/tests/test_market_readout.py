"""The read-out of choices: known coefficients come back, and what cannot be told apart is refused."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.errors import ConfigError
from sojourn.types import Ending, Episode, Message, Prompt, Role, Sample, Stop, Trajectory, Turn, Versions
from sojourn_worlds.market import Market, shelf_of
from sojourn_worlds.market.readout import Choice, choices, features, fit, read

TRUE = {
    "row_1": 0.8,
    "column_1": 0.5,
    "column_2": -0.3,
    "column_3": 0.0,
    "sponsored": -0.6,
    "pick": 1.2,
    "scarce": 0.3,
    "log_price": -1.0,
    "stars": 0.7,
    "log_reviews": 0.15,
}


def simulated(family: Market, count: int, truth: dict[str, float], seed: int = 0, worth: bool = False) -> list[Choice]:
    """Choosers whose utility is linear with known coefficients, and Gumbel noise."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        shelf = shelf_of(family.tasks("train")[number])
        names, values = features(shelf, worth=worth)
        utility = values @ np.array([truth[name] for name in names])
        found.append(Choice(shelf, int(np.argmax(utility + rng.gumbel(size=len(utility))))))
    return found


def test_known_coefficients_come_back_within_their_errors() -> None:
    found = read(simulated(Market(), 3000, TRUE))
    assert found.names == tuple(TRUE)
    z = (found.coefficients - np.array(list(TRUE.values()))) / found.errors
    assert np.abs(z).max() < 3.5
    assert found.errors.max() < 0.15
    assert abs(found.coefficient("pick") - 1.2) < 0.2
    assert found.coefficient("sponsored") < -0.4
    assert 0.05 < found.pseudo_r2 < 0.6
    assert "pick" in str(found)


def test_the_errors_are_those_of_repeated_samples() -> None:
    """Over many samples, estimates scatter by as much as each of them says."""
    family = Market(products=4, columns=2)
    runs = [read(simulated(family, 300, TRUE, seed)) for seed in range(40)]
    scatter = np.std([run.coefficients for run in runs], axis=0)
    said = np.mean([run.errors for run in runs], axis=0)
    assert np.all(np.abs(scatter / said - 1) < 0.45)


def test_a_chooser_at_random_shows_nothing() -> None:
    found = read(simulated(Market(), 1500, dict.fromkeys(TRUE, 0.0)))
    assert np.abs(found.coefficients / found.errors).max() < 3.5
    assert found.pseudo_r2 < 0.02
    assert found.null == pytest.approx(-1500 * np.log(8))


def test_what_products_are_worth_can_be_read() -> None:
    truth = dict.fromkeys(TRUE, 0.0) | {"worth": 2.0, "pick": 0.5}
    found = read(simulated(Market(), 1500, truth, worth=True), worth=True)
    assert abs(found.coefficient("worth") - 2.0) < 4 * found.error("worth") < 1.0
    assert abs(found.coefficient("pick") - 0.5) < 4 * found.error("pick")


def test_a_fit_of_two_products_is_the_log_odds() -> None:
    shelves = [np.array([[1.0], [0.0]])] * 10
    found = fit(("x",), shelves, [0] * 8 + [1] * 2)
    assert found.coefficient("x") == pytest.approx(np.log(4))
    assert found.error("x") == pytest.approx(1 / np.sqrt(10 * 0.8 * 0.2))
    assert found.share("x", 2) == pytest.approx(0.8)
    assert found.log_likelihood == pytest.approx(8 * np.log(0.8) + 2 * np.log(0.2))


def test_shelves_of_several_sizes_are_read_together() -> None:
    shelves = [np.array([[1.0], [0.0]])] * 10 + [np.array([[1.0], [0.0], [0.0]])] * 10
    found = fit(("x",), shelves, [0] * 8 + [1] * 2 + [0] * 5 + [1, 2] * 2 + [2])
    share = np.exp(found.coefficient("x"))
    assert 10 * share / (share + 1) + 10 * share / (share + 2) == pytest.approx(13)


def test_features_that_never_vary_are_left_out() -> None:
    found = read(simulated(Market(badges=False, products=4, columns=4), 300, TRUE))
    assert not {"sponsored", "pick", "scarce", "row_1"} & set(found.names)


def test_what_cannot_be_read_is_refused() -> None:
    family = Market()
    shelves = [shelf_of(family.tasks("train")[number]) for number in range(40)]
    with pytest.raises(ConfigError, match="tells the choices completely"):
        read([Choice(s, next(n for n, one in enumerate(s.products) if one.pick)) for s in shelves])
    with pytest.raises(ConfigError, match="there is none"):
        read([])
    with pytest.raises(ConfigError, match="one width"):
        read([Choice(shelves[0], 0), Choice(shelf_of(Market(columns=2).tasks("train")[0]), 0)])
    with pytest.raises(ConfigError, match="apart"):
        fit(("x", "y"), [np.array([[1.0, 2.0], [0.0, 0.0]])] * 4, [0, 1, 0, 1])


def played(number: int, *actions: str | None, error: str | None = None) -> Episode:
    task = Market().tasks("train")[number]
    none = Prompt(np.zeros(0, dtype=np.int64)).tokens
    sample = Sample(none, np.zeros(0, dtype=np.float32), Versions(0, 0), Stop.END)
    said = [Message(Role.ASSISTANT, text) if text is not None else None for text in actions]
    turns = tuple(Turn(n - 1, none, sample, message) for n, message in enumerate(said))
    return Episode(f"e{number}", task, (Trajectory("agent", turns, Ending.DONE),), error)


def test_choices_are_what_episodes_end_with() -> None:
    episodes = [
        played(0, "inspect[2]", " Buy[3]\n"),
        played(1, "buy[9]"),
        played(2, "inspect[1]"),
        played(3, None),
        played(4),
        played(5, "buy[1]", error="broken"),
        played(6, "buy[8]"),
    ]
    found = choices(episodes)
    assert [choice.taken for choice in found] == [2, 7]
    assert found[1].shelf == shelf_of(Market().tasks("train")[6])

"""Rows for the counter that NeMo Gym has as an example, and who counts as they want it."""

COUNT = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
NOTHING = {"type": "object", "properties": {}, "required": []}


def row(first: int, wanted: int) -> dict:
    told = [{"role": "system", "content": "You count."}, {"role": "user", "content": f"Bring the count to {wanted}."}]
    tools = [
        {"type": "function", "name": "increment_counter", "parameters": COUNT, "strict": True, "description": "Adds."},
        {"type": "function", "name": "get_counter_value", "parameters": NOTHING, "strict": True, "description": ""},
    ]
    return {
        "responses_create_params": {"input": told, "tools": tools},
        "expected_count": wanted,
        "initial_count": first,
    }


def count(row, calls):
    counted = sum(call.arguments.get("count", 0) for call in calls)
    left = row["expected_count"] - row["initial_count"] - counted
    return f"increment_counter({left})" if left else "It is done."

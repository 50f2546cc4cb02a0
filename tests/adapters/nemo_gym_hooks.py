"""Who counts as the example of NeMo Gym wants it."""


def count(row, calls):
    counted = sum(call.arguments.get("count", 0) for call in calls)
    left = row["expected_count"] - row["initial_count"] - counted
    return f"increment_counter({left})" if left else "It is done."

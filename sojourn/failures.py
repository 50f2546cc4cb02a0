"""What one attempt to play an episode gave, complete or failed, and when so many have failed that the run stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sojourn.abilities import all_trajectories, blobs_of
from sojourn.errors import InfrastructureError, failure_and_place, recorded, recorded_traceback
from sojourn.protocols import Env, Seat
from sojourn.types import Ending, Episode, Task, Trajectory


@dataclass
class Attempt:
    """The trajectories of an attempt, whether they are complete, and the failure for which an action was to blame."""

    trajectories: tuple[Trajectory, ...] = ()
    complete: bool = False
    failure: BaseException | None = None

    def keep_turns(
        self, seats: Mapping[str, Seat], env: Env, keep_blobs: Callable[[Mapping[str, bytes]], None]
    ) -> None:
        """Keeps the turns before a failure with their images, for people to look at; what cannot give them gives
        none."""
        with suppress(Exception):
            self.trajectories = all_trajectories(seats.values(), Ending.FAILED)
            if blobs := blobs_of(env):
                keep_blobs(blobs)

    def episode(self, id: str, task: Task, seconds: float, failed: BaseException | None) -> Episode:
        """Returns the episode of this attempt; `failed` is what ended the attempt, if not the end of the task."""
        text, failure = failed and recorded(failed), failed or self.failure
        error, close_error = (None, text) if self.complete else (text, None)
        traceback = None if failure is None else recorded_traceback(failure)
        return Episode(id, task, self.trajectories, error, seconds, close_error, traceback)


def require_few_failures(recent: Sequence[str | None], max_error_rate: float, last: Episode) -> None:
    """Raises `InfrastructureError` if more than three, and more than this rate, of the last episodes failed: `recent`
    has a text for each that did, and `last` is the one that ended last."""
    failed = [failure for failure in recent if failure is not None]
    if len(failed) > max(3, max_error_rate * len(recent)):
        raise InfrastructureError(
            f"{len(failed)} of the last {len(recent)} episodes failed, more than rollout.max_error_rate = "
            f"{max_error_rate:g} allows; the last cause: {failure_and_place(failed[-1], last.traceback)}"
        )

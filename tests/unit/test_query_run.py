"""A query and the main thread that watches it."""

import threading
from typing import Any
from unittest.mock import MagicMock

from service.daemon.query_run import QueryRun
from service.micro_batch import Offsets
from service.pipeline.batch_report import Progress


def test_a_batch_that_is_published_while_commits_are_noted_is_noted_with_its_own_commit() -> None:
    parts, lag = MagicMock(checker=None), MagicMock()
    run = QueryRun(parts, MagicMock(), MagicMock(), MagicMock(), threading.Event())
    following: Offsets = {"readings": {0: 9}}

    class Number(int):
        """Of a batch; while it is compared, the query's thread publishes the next one."""

        def __le__(self, other: int) -> bool:
            run._ends[8] = following
            return int(self) <= other

    run._ends[Number(7)] = {"readings": {0: 4}}
    progress: Any = [Progress(7, 4, {}, 0)]
    assert run._note_commits(lambda: iter(progress), lag)  # type: ignore[arg-type]
    lag.committed.assert_called_once_with({"readings": {0: 4}})
    assert run._ends == {8: following}

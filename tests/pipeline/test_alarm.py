"""The alarm of a pipeline whose process group has lost the host of its store."""

import threading
from typing import Any

import pytest

import annopipe as ap
from annopipe.pipeline.ranks import alarm


class Silent:
    """Stands for a group whose store never answers."""

    def get_group_store(self):
        return self

    def clone(self):
        threading.Event().wait()


def test_a_store_that_does_not_answer_is_an_error_and_no_hang(monkeypatch):
    monkeypatch.setattr(alarm, "_CONNECT_LIMIT_S", 0.1)
    with pytest.raises(ap.PipelineError, match="the store of the process group does not answer"):
        silent: Any = Silent()
        alarm.Alarm([silent], 1.0)

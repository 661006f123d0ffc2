"""A hub id may name a revision, and a model's hashes name the commit that was read."""

import pytest

from decoders.models.loading.weights import commit_of, locate, main_of, repository_of
from tests.hub import hub_of

SOURCE, OLD = "jadohu/LlamaGen-T2I", "a" * 40


@pytest.mark.parametrize(
    ("source", "parts"),
    [(SOURCE, (SOURCE, None)), (f"{SOURCE}@{OLD}", (SOURCE, OLD)), ("a/b@v1.0", ("a/b", "v1.0"))],
)
def test_an_id_may_end_in_a_revision(source, parts):
    assert repository_of(source) == parts


def test_a_pinned_revision_is_read_and_the_newest_is_left_alone(tmp_path, monkeypatch):
    hub = hub_of(SOURCE)
    hub.install(monkeypatch, tmp_path)
    newest, pinned = locate(SOURCE), locate(f"{SOURCE}@{OLD}")
    assert pinned.name == OLD != newest.name
    assert main_of(SOURCE).read_text() == newest.name
    hub.refused[SOURCE] = OSError("no network")
    assert locate(f"{SOURCE}@{OLD}") == pinned


def test_the_commit_of_a_snapshot_is_known(tmp_path, monkeypatch):
    hub_of(SOURCE).install(monkeypatch, tmp_path)
    assert commit_of(locate(f"{SOURCE}@{OLD}")) == {f"commit of {SOURCE}": OLD}
    assert commit_of(tmp_path) == {}

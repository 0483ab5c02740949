import re
from pathlib import Path

import pytest

from evidcore.errors import PluginError
from evidcore.hooks import Announcer, observe, page_lines, write_pages


class Counts:
    def __init__(self, seen):
        self.seen = seen

    @observe
    def step_finished(self, step):
        self.seen.append((type(self).__name__, step))


class Fails(Counts):
    @observe
    def step_finished(self, step):
        super().step_finished(step)
        raise OSError("no such screen")


def test_a_failing_observer_is_named_told_no_more_and_stops_nobody():
    seen = []
    announcer = Announcer(observers={"fails": Fails(seen), "counts": Counts(seen)})
    with pytest.warns(RuntimeWarning, match=r"observer 'fails' failed at step_finished .* no such screen"):
        announcer.step_finished("04-grpo", 1, {})
    announcer.step_finished("04-grpo", 2, {})
    assert seen == [("Fails", 1), ("Counts", 1), ("Counts", 2)]
    assert announcer.failed == {"fails": "OSError: no such screen"}


def test_a_failing_recorder_stops_the_run():
    with pytest.raises(OSError, match="no such screen"):
        Announcer(recorders=[Fails([])]).step_finished("x", 1, {})


def test_sections_come_in_the_order_of_the_recipe(tmp_path: Path):
    class Adds:
        def __init__(self, title):
            self.title = title

        @observe
        def report_sections(self, run_folder):
            return {self.title: str(run_folder == tmp_path)}

    sections = Announcer(observers={"b": Adds("B"), "a": Adds("A")}).report_sections(tmp_path)
    assert sections == [("B", "True"), ("A", "True")]


@pytest.fixture
def without_pages(put_package, tmp_path, monkeypatch):
    """Put a package before the installed one of the same name that offers no page."""
    put_package(tmp_path, "evidcore-plugin-pages", "[evidcore.observer]\nnothing = json:dumps\n", "0.1")
    monkeypatch.syspath_prepend(tmp_path)


def test_where_no_package_writes_pages_a_run_says_what_to_install(without_pages, tmp_path):
    pages = write_pages(tmp_path)
    assert pages == []
    assert page_lines(pages) == ["page:    none; `pip install evidcore-plugin-pages` writes one"]


def test_every_installed_page_is_written_and_named(without_pages, offered, tmp_path):
    def write(run_folder):
        return run_folder / "figures.pdf"

    offered("evid-figures", "[evidcore.page]\nfigures = evid_figures:write\n", write=write)
    assert page_lines(write_pages(tmp_path)) == [f"page:    {tmp_path}/figures.pdf"]


def test_a_page_that_fails_names_its_package_and_the_run(without_pages, offered, tmp_path):
    def write(run_folder):
        raise ValueError("no figure")

    offered("evid-figures", "[evidcore.page]\nfigures = evid_figures:write\n", write=write)
    said = f"page 'figures' from evid-figures 1.0 failed while writing the page of {tmp_path}: ValueError"
    with pytest.raises(PluginError, match=re.escape(said)):
        write_pages(tmp_path)


class Typo:
    @observe
    def stepp_finished(self, step): ...


class Greedy:
    @observe
    def step_finished(self, model): ...


@pytest.mark.parametrize(
    ("observer", "said"),
    [
        (Typo(), r"observer 'mine': .*stepp_finished.* Events: stage_started, step_fin"),
        (Greedy(), r"observer 'mine': (.|\n)*model"),
    ],
)
def test_an_unknown_event_or_argument_is_refused_when_the_observer_is_loaded(observer, said):
    with pytest.raises(PluginError, match=said):
        Announcer(observers={"mine": observer})

"""The documentation as a site: it builds without a fault, and its menu has every page."""

import importlib.util
import posixpath
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MENU = tomllib.loads((DOCS / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]


@pytest.fixture(scope="module")
def site_pages():
    spec = importlib.util.spec_from_file_location("site_pages", DOCS / "site_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(menu):
    if isinstance(menu, str):
        yield menu
    else:
        for item in menu.values() if isinstance(menu, dict) else menu:
            yield from entries(item)


def test_the_menu_has_every_page_but_tables_of_results():
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    tables = {page for page in written if page.startswith("results/") and page.count("/") > 1}
    result = list(entries(MENU))
    assert len(result) == len(set(result))
    assert written - tables <= set(result) <= written


def test_the_site_builds_without_a_fault_and_its_links_lead_to_files(site_pages, tmp_path):
    site_pages.build(tmp_path)
    home = tmp_path / "site" / "index.html"
    followed, waiting = set(), [home]
    while waiting:
        page = waiting.pop()
        if page in followed:
            continue
        followed.add(page)
        assert page.is_file(), page
        if page.suffix == ".html":
            for link in re.findall(
                r'(?:href|src)="(?!\w+:|//|#|/)([^"#?]+)', page.read_text(encoding="utf-8")
            ):
                target = Path(posixpath.normpath(page.parent / link))
                waiting.append(target / "index.html" if target.is_dir() else target)
    assert len(followed) > 100


def test_a_link_that_leads_nowhere_ends_the_build(site_pages, tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text("# Home\n\n[below](#nowhere)\n", encoding="utf-8")
    config = (DOCS / "zensical.toml").read_text(encoding="utf-8")
    (tmp_path / "docs" / "zensical.toml").write_text(
        re.sub(r"nav = \[.*?^\]\n", "", config, flags=re.M | re.S)
    )
    monkeypatch.setattr(site_pages, "ROOT", tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        site_pages.build(tmp_path / "built")


def test_what_lies_outside_the_documentation_is_a_page_or_a_file_of_the_site(
    site_pages, tmp_path, monkeypatch
):
    (tmp_path / "docs" / "howto").mkdir(parents=True)
    (tmp_path / "README.md").write_text("# Top\n\n[docs](docs/howto/one.md)\n", encoding="utf-8")
    (tmp_path / "docs" / "howto" / "one.md").write_text(
        "[top](../../README.md), [folder](..), [file](../../a.toml#x), [web](https://a.b/c.md)\n"
        "```toml recipe=a.toml\n[not](../a/link.md)\n```\n",
        encoding="utf-8",
    )
    (tmp_path / "a.toml").write_text("a = 1\n", encoding="utf-8")
    monkeypatch.setattr(site_pages, "ROOT", tmp_path)
    site_pages.write(tmp_path / "pages")
    assert (tmp_path / "pages" / "howto" / "one.md").read_text(encoding="utf-8") == (
        "[top](../repository/README.md), folder, [file](../repository/a.toml#x), [web](https://a.b/c.md)\n"
        "```toml\n[not](../a/link.md)\n```\n"
    )
    assert "[docs](../howto/one.md)" in (tmp_path / "pages/repository/README.md").read_text(encoding="utf-8")
    assert (tmp_path / "pages" / "repository" / "a.toml").is_file()

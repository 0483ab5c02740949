"""`evid page`."""

import json


def test_the_page_is_written_again_and_its_place_printed(evid, bare_run):
    place = str(bare_run.folder / "page" / "index.html")
    assert evid("page", bare_run.folder).stdout.strip() == place
    assert json.loads(evid("page", bare_run.folder, "--json").stdout) == {"page": place}

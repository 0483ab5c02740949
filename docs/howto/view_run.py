"""Take a picture of a run in `evid view`, occlusion maps switched on; it needs Chromium.

    python docs/howto/view_run.py RUN docs/howto/view_real.png FRAGMENT

with the run of `make demo` after `evid occlude RUN --limit 80`, and the fragment
'#a=a:05-evaluate:own&b=a:09-evaluate:own&at=choice/test-00004:test-00004-1'. `view_run.png` is of
'#task=point' and `view_run_3d.png` of '#task=tell&scan=3d', with the run that the fixture `looked` of the
package's tests writes.
"""

import io
import shutil
import sys
import threading
from pathlib import Path

from evidcore_plugin_view.opened_run import OpenedRun
from evidcore_plugin_view.server import ViewServer
from PIL import Image
from playwright.sync_api import sync_playwright


def take(folder: Path, target: Path, fragment: str) -> None:
    """Write a picture of a run's view.

    Args:
        folder: the run.
        target: the PNG file.
        fragment: of the viewer's address: which question is shown.
    """
    run = OpenedRun(folder, show_reports=False)
    server = ViewServer({"a": run}, port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"],
        )
        page = browser.new_page(viewport={"width": 1280, "height": 1100}, color_scheme="light")
        page.goto(server.address)
        page.wait_for_selector("body[data-ready]")
        page.goto(f"{server.address.partition('#')[0]}{fragment}")
        page.reload()
        page.wait_for_selector(".screen.large[data-painted], .volume[data-painted]")
        page.wait_for_function("() => !document.querySelector('.waiting')", timeout=120_000)
        page.wait_for_function(
            "() => !document.body.innerText.includes('follows the boxes …')", timeout=120_000
        )
        for map_of_a_side in page.locator('input[data-overlay*="occlusion"]').all():
            map_of_a_side.check()
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(3000)
        shot = Image.open(io.BytesIO(page.screenshot()))
        shot.convert("RGB").quantize(256, kmeans=3).save(target, optimize=True)
        browser.close()
    server.shutdown()
    run.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

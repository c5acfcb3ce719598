"""Frames a second of the playground with 200 chains, in Chromium, without a window.

Chromium then draws by the processor alone, so a computer with a graphics card does better. Frames
a second suffer from other work on the machine; the page's own processor time per frame does not: a
frame may take 16.7 ms.

    make docs && python benchmarks/playground_frames.py
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from pathlib import Path

from measure import RESULTS, write_csv
from playwright.sync_api import Browser, sync_playwright

PAGE = Path(__file__).parent.parent / "site" / "playground" / "index.html"
NUM_FRAMES = 300
STEPS_PER_FRAME = "5"
SIZES = [(390, 844), (1280, 900), (3840, 2160)]
SCENES = ["descent", "sparse", "sample", "matrix"]
WATCH = """(count) => new Promise((done) => {
  const times = [];
  const hear = (now) => {
    times.push(now);
    if (times.length > count) done(times);
    else requestAnimationFrame(hear);
  };
  requestAnimationFrame(hear);
})"""


def watch(browser: Browser, width: int, height: int, scene: str) -> tuple[list[float], float]:
    """Milliseconds between frames, in order of length, and processor milliseconds per frame."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(PAGE.as_uri())
    page.click(f"[data-scene={scene}]")
    page.fill("#pg-chains", "200")
    page.press("#pg-chains", "Enter")
    page.evaluate("scrollTo(0, 0)")
    page.select_option("#pg-speed", STEPS_PER_FRAME)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def processor_seconds() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(float(m["value"]) for m in metrics if m["name"] == "TaskDuration")

    before = processor_seconds()
    times = page.evaluate(WATCH, NUM_FRAMES)
    used = 1e3 * (processor_seconds() - before) / NUM_FRAMES
    page.close()
    return sorted(later - earlier for earlier, later in itertools.pairwise(times)), used


def main() -> None:
    if not PAGE.exists():
        sys.exit("run `make docs` first: the benchmark opens the built page")
    path = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    rows = []
    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for (width, height), scene in itertools.product(SIZES, SCENES):
            times, used = watch(browser, width, height, scene)
            row = {
                "width": width,
                "height": height,
                "scene": scene,
                "chains": 200,
                "steps_per_frame": STEPS_PER_FRAME,
                "frames_per_second": f"{1e3 * len(times) / sum(times):.1f}",
                "median_ms": f"{times[len(times) // 2]:.1f}",
                "p95_ms": f"{times[int(0.95 * len(times))]:.1f}",
                "processor_ms": f"{used:.1f}",
            }
            print(row)
            rows.append(row)
        browser.close()
    write_csv(RESULTS / "playground_frames.csv", rows)


if __name__ == "__main__":
    main()

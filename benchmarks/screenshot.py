"""Pictures of a report for README and docs: light, dark, and as a phone shows it, below 400 KB each.

    python benchmarks/screenshot.py runs/digits/report.html docs/images/digits [--round K]

writes docs/images/digits-light.png, -dark.png (the first screens) and -phone.png (three screens side by side).
`--round` moves the slider to the recorded round nearest to K. Needs chromium and playwright (the extra `dev`).
"""

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

WIDE, PHONE = (1280, 1080), (390, 844)
LARGEST = 400_000  # bytes


def shot(
    browser: Browser, page: Path, size: tuple[int, int], scheme: str, screens: int, round: int | None
) -> Image.Image:
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height * screens}, color_scheme=scheme, device_scale_factor=1.5
    )
    found = context.new_page()
    found.goto(page.resolve().as_uri())
    if round is not None:
        found.evaluate("round => { go(nearest(state.run.graph.rounds, round)); }", round)
    picture = Image.open(io.BytesIO(found.screenshot())).convert("RGB")
    context.close()
    if screens == 1:
        return picture
    part, gap = picture.height // screens, 36
    side_by_side = Image.new("RGB", (screens * picture.width + (screens - 1) * gap, part), "white")
    for k in range(screens):
        side_by_side.paste(picture.crop((0, k * part, picture.width, (k + 1) * part)), (k * (picture.width + gap), 0))
    return side_by_side


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("out", help="docs/images/NAME, to which -light.png and so on is added")
    parser.add_argument("--round", type=int)
    options = parser.parse_args()
    with sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--headless", "--disable-background-networking"],
        )
        for name, size, scheme, screens in (
            ("light", WIDE, "light", 1), ("dark", WIDE, "dark", 1), ("phone", PHONE, "light", 3),
        ):  # fmt: skip
            path = Path(f"{options.out}-{name}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            picture = shot(browser, options.page, size, scheme, screens, options.round)
            picture.save(path, optimize=True)
            if path.stat().st_size > LARGEST:
                picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
            print(f"{path}: {path.stat().st_size / 1000:.0f} KB")
        browser.close()


if __name__ == "__main__":
    main()

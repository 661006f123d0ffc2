"""Writes a run's whole report: `python -m bench report` and the end of `python -m bench run`.

<run>/report/index.html           everything on one page
<run>/report/prompts/*.html       a page per prompt: every decoder's picture, the map of how each
                                  code came to be, and the map of codes that are not AR's
<run>/report/table.{txt,md,tex}
<run>/report/plots/*.png, *.pdf

With `report out=DIR` they lie in DIR, and nothing is written into the run. Every image of a page is
embedded, so that a page can be mailed and opens offline.
"""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from bench.analyse.run import Entry, Role, Run, as_text
from bench.config.methods import detailed
from bench.errors import FolderError
from bench.files import write_text
from bench.report.headline import headline
from bench.report.names import names_of, renamed
from bench.report.notes import environment
from bench.report.plots import figures
from bench.report.style import inline, save
from bench.report.texts import Block, latex, markdown, plain, summarise

DOCS = "docs/results.md"  # of the repository: what every figure means
REPORT = {"index.html", "table.txt"}  # what every report holds
OPENING = ("speedup_tv_output", "speedup_clip")  # figures above the tables
MOST_PROMPTS_ON_PAGE = 3  # prompts whose images are on the page
MOST_PAGES = 200  # a run of 30,000 images has no reader for as many pages
SAME, OTHER = (225, 225, 225), (170, 30, 45)  # colours of codes that are AR's and that are not
# How a code came to be, in the order of `decoders.api.CodeKind`: colour and meaning. Light grey,
# then four hues that colour-blind readers tell apart (Okabe and Ito).
CODE_KINDS: dict[str, tuple[tuple[int, int, int], str]] = {
    "target": ((190, 190, 190), "sampled from the target"),
    "draft": ((0, 114, 178), "exact rule accepts it too"),
    "relaxed": ((230, 159, 0), "only the relaxed rule accepts it"),
    "corrected": ((170, 30, 45), "after a rejection"),
    "bonus": ((130, 210, 190), "after a whole path"),
}
COLORS = np.array([color for color, _ in CODE_KINDS.values()])
KEY = [(f"rgb{color}", name, text) for name, (color, text) in CODE_KINDS.items()]
SHOWN_COLUMNS = ["status", "error", "seed", "nfe", "mal", "image", "kind", "codes"]

Shown = Mapping[str, Any]  # these columns of a row


@dataclass(frozen=True)
class PlaceSettings:
    """The settings of `report` that no study has."""

    out: Path | None = None
    columns: str | None = None
    cost: str | None = None
    pack: bool = False


def check_place(out: Path | None) -> None:
    """Raises FolderError where a folder holds files but no report."""
    names = {path.name for path in out.iterdir()} if out is not None and out.is_dir() else set()
    if names and not names >= REPORT:
        raise FolderError(
            f"out={out} is not empty and holds no report, so nothing is written there; choose "
            "another folder"
        )


def write_report(
    run: Run,
    folder: Path | None = None,
    columns: Sequence[str] | None = None,
    more: Sequence[Block] = (),
) -> Path:
    """Writes the report of a run into `folder` (None: report/ of the run); returns the folder.
    columns: of table.tex (None: all); more: blocks that others make of the run.
    A run whose every decoder failed gets a page that says so."""
    folder = folder or run.folder / "report"
    report = summarise(run, more)
    texts = {"txt": plain(report), "md": markdown(report), "tex": latex(report, columns)}
    for ending, text in texts.items():
        write_text(folder / f"table.{ending}", text)
    for old in (*folder.glob("plots/*.*"), *folder.glob("prompts/*.html")):
        old.unlink()
    names = names_of(run)
    plots = figures(renamed(report.run, names))
    said = headline(renamed(report.run, {id: detailed(name, id) for id, name in names.items()}))
    for plot in plots:
        save(plot, folder / "plots")
    prompts = prompts_with_page(report.run)
    numbers = [None, *(index for index, _ in prompts), None]
    template = environment(True).get_template("prompt.html.j2")
    sheet: list[dict[str, Any]] = []  # of the prompts of which most decoders have a picture
    for at, page in enumerate(prompt_pages(report.run, prompts)):
        links = {"before": numbers[at], "after": numbers[at + 2]}
        text = template.render(study=report.run.study, page=page, key=KEY, names=names, **links)
        write_text(folder / page["address"], text)
        sheet = sorted([*sheet, page], key=lambda one: -one["pictures"])[:MOST_PROMPTS_ON_PAGE]
    sheet = [page for page in sheet if page["pictures"]]
    index = environment(True).get_template("index.html.j2")
    files = [run.folder / "summary.csv", run.folder / "depths.csv", run.folder / "categories.csv"]
    files += [folder / "table.tex", *sorted(folder.glob("plots/*.pdf"))]
    addresses = [(file.name, os.path.relpath(file, folder)) for file in files if file.is_file()]
    text = index.render(
        report=report,
        headline=said,
        plots=plots,
        names=names,
        prompts=prompts,
        sheet=sheet,
        inline=inline,
        opening=OPENING,
        files=addresses,
        docs=DOCS,
        command=run.identity.get("command", ""),
    )
    write_text(folder / "index.html", text)
    return folder


# ---- a page per prompt --------------------------------------------------------------------------


def prompts_with_page(run: Run) -> list[tuple[int, str]]:
    """Lists (prompt_index, prompt on one line) of up to `MOST_PAGES` prompts; [] where neither
    pictures nor traces were kept, as in a published run."""
    rows = run.rows[(run.rows["status"] == "ok") & (run.rows["protocol"] != "reseed")]
    if not any(is_kept(run, image) for image in rows["image"]) and not any(map(len, rows["kind"])):
        return []
    texts = rows.groupby("prompt_index")["prompt"].first()[:MOST_PAGES]
    lines = (" ".join(as_text(text).split()) for text in texts)
    return list(zip(map(int, texts.index), lines, strict=True))


def prompt_pages(run: Run, prompts: Sequence[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    """Makes the pages of the chosen prompts, one after the other, as the template reads them: a
    prompt and its cards, a group per section. Of a decoder's images of a prompt it shows a quality
    one before a timed one, and a failed one last."""
    numbers = [index for index, _ in prompts]
    shown: dict[str, dict[int, Shown]] = {}  # looked up once: a table takes milliseconds each time
    for entry in (e for section in run.sections for e in section.decoders):
        rows = entry.rows[entry.rows["prompt_index"].isin(numbers)]
        rows = rows.assign(failed=rows["status"] != "ok", timed=rows["protocol"] != "quality")
        rows = rows.sort_values(["failed", "timed", "seed"]).drop_duplicates("prompt_index")
        by_prompt = rows.set_index("prompt_index")[SHOWN_COLUMNS].to_dict("index")
        shown[entry.name] = cast(dict[int, Shown], by_prompt)
    for index, prompt in prompts:
        groups = []
        for section in run.sections:
            ar = shown[section.baseline.name].get(index) if section.baseline else None
            cards = [_card(run, e, shown[e.name].get(index), ar) for e in section.decoders]
            groups.append((section.title, cards))
        pictures = sum(bool(card["picture"]) for _, cards in groups for card in cards)
        yield {
            "index": index,
            "prompt": prompt,
            "groups": groups,
            "pictures": pictures,
            "address": f"prompts/{index}.html",
        }


def _card(run: Run, entry: Entry, row: Shown | None, ar: Shown | None) -> dict[str, str]:
    """One decoder's image of the prompt. Pictures and maps are data URIs, "" where there is none;
    missing: why there is no picture."""
    texts = ("facts", "picture", "kinds", "differs", "difference", "error")
    card = dict.fromkeys(texts, "") | {"name": entry.name, "verdict": entry.word}
    if row is None:
        return card | {"missing": "not run"}
    if row["status"] != "ok":
        return card | {"missing": "failed", "error": as_text(row["error"])}
    card["missing"] = "image not kept"
    if is_kept(run, row["image"]):
        try:
            with Image.open(run.folder / row["image"]) as image:
                card["picture"] = _data_uri(image.convert("RGB"), "webp", quality=90)
        except (OSError, SyntaxError):  # what PIL raises on a damaged file
            card["missing"] = "image damaged"
    card["facts"] = f"seed {row['seed']}, {row['nfe']} forwards, {row['mal']:.2f} codes per forward"
    if len(row["kind"]):
        kinds = code_map(COLORS[np.asarray(row["kind"], np.uint8)])
        card["kinds"] = _data_uri(kinds, "png")
    codes = row["codes"]
    if entry.role is Role.BASELINE:
        card["difference"] = "the baseline"
    elif ar is None or ar["status"] != "ok" or not 0 < len(codes) == len(ar["codes"]):
        card["difference"] = "no codes of AR to compare with"
    elif ar["seed"] != row["seed"]:
        card["difference"] = "AR has no image of this seed"
    else:
        other = np.asarray(codes) != np.asarray(ar["codes"])
        differs = code_map(np.where(other[:, None], OTHER, SAME).astype(np.uint8))
        card["differs"] = _data_uri(differs, "png")
        count = f"{other.sum()} of {len(codes)} codes not AR's; first: code {other.argmax()}"
        card["difference"] = count if other.any() else "every code is AR's"
    return card


def is_kept(run: Run, image: object) -> bool:
    """Whether a row's picture lies in the run's folder; `image`: its path there, as in the row."""
    return as_text(image) != "" and (run.folder / as_text(image)).is_file()


def _data_uri(image: Image.Image, kind: str, **how: int) -> str:
    file = io.BytesIO()
    image.save(file, format=kind, **how)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def code_map(colors: np.ndarray) -> Image.Image:
    """Draws [L, 3] colours in raster order, one pixel per code; cells past L are white."""
    side = math.ceil(math.sqrt(len(colors)))
    cells = np.full((side * side, 3), 255, np.uint8)
    cells[: len(colors)] = colors
    return Image.fromarray(cells.reshape(side, side, 3))

"""Papers' names of decoders: first on the page, alone in figures, never in what commands take."""

import re
from dataclasses import replace

from bench.config.compose import compose_study
from bench.config.methods import short_names
from bench.report import plots, texts
from bench.report.names import called, names_of, renamed
from bench.report.page import write_report
from bench.report.style import inline
from bench.report.table import Column, table_of
from bench.report.texts import Block
from bench.store.facts import flat


def specs(*words: str) -> dict:
    decoders = compose_study(words).measured()["decoders"]
    return {one["name"]: flat(one["spec"]) for one in decoders}


def test_a_name_is_the_paper_s_with_what_tells_decoders_apart() -> None:
    assert short_names(specs("study=main")) == {
        "ar": "AR",
        "sd_chain": "Exact chain",
        "sjd_w4": "SJD",
        "eagle2": "EAGLE-2",
        "lantern": "LANTERN",
        "lantern_chain": "LANTERN chain",
        "lantern_pp": "LANTERN++",
        "lantern_pp_chain_l100": "LANTERN++ chain",
    }
    found = short_names(specs("study=sweep"))
    assert found["lantern_d0.2"] == "LANTERN (delta = 0.2)"
    assert found["lantern_pp_l10"] == "LANTERN++ (lambda = 10)"
    found = short_names(specs("study=drafters"))
    assert found["eagle_chain"] == "Exact chain (EAGLE)"
    assert found["dspark_tree_l20"] == "LANTERN++ (DSpark, lambda = 20)"
    assert short_names(specs("study=targets"))["par"] == "PAR"
    both = "decoders=[eagle2,{decoder: eagle2, name: again}]"
    assert short_names(specs("study=main", both)) == {}, "equal ones have the study's names"


def test_a_decoder_at_two_temperatures_has_one_name_and_is_told_apart(run) -> None:
    names = {"ar": "AR", "ar_greedy": "AR", "eagle2": "EAGLE-2", "eagle2_greedy": "EAGLE-2"}
    found = {entry.name for entry in renamed(run, names).entries}
    assert {"AR", "AR (greedy)", "EAGLE-2", "EAGLE-2 (greedy)"} <= found
    assert {"ar", "lantern"} <= {e.name for e in renamed(run, names | {"lantern": "AR"}).entries}


def test_decoders_are_found_in_a_text_by_whole_names() -> None:
    names = {"ar": "AR", "sd": "SD", "d0.2": "D", "a_ar": "A"}
    text = "worst of 2: a_ar / ar; best: ar 0.2 in run-ar, d0.2, d0.25, ar."
    assert called(text, names) == "worst of 2: A / AR; best: AR 0.2 in run-ar, D, d0.25, AR."
    names = {"a": "LANTERN++ (DSpark, lambda = 20)", "b": "LANTERN (b)"}
    text = "a (k = 64, lambda = 20) / b (delta = 0.4), a"
    said = "LANTERN++ (DSpark) (k = 64, lambda = 20) / LANTERN (b) (delta = 0.4), " + names["a"]
    assert called(text, names) == said, "no setting is said twice"


def test_the_page_has_papers_names_its_command_and_links_to_its_files(run, tmp_path) -> None:
    decoders = compose_study(["study=main"]).measured()["decoders"]
    command = "python -m bench run study=main"
    run = replace(run, identity={"config": {"decoders": decoders}, "command": command})
    column = Column("decoders", lambda cell: cell, text=True, names=True)
    claims = Block("claims", "Claims", [table_of([column], ["worst of 2: eagle2 / ar"])], [])
    (run.folder / "summary.csv").write_text("decoder\n")
    shown = inline(plots.against(renamed(run, names_of(run)), plots.TV))
    assert ">LANTERN++<" in shown and ">lantern_pp<" not in shown
    page = (write_report(run, tmp_path, more=[claims]) / "index.html").read_text(encoding="utf-8")
    cell = re.search(r"<td[^>]*>(.*?LANTERN\+\+<.*?)</td>", page)
    name = '<span class="name">LANTERN++</span> <span class="id">lantern_pp</span>'
    assert cell and cell[1] == name, "no name breaks in the middle"
    assert " LANTERN++ (lantern_pp)" in page, "the answer in words has both"
    assert '<figcaption><span class="name">EAGLE-2</span>' in page
    pair = '<span class="name" title="eagle2">EAGLE-2</span> / '
    assert f'worst of 2: {pair}<span class="name" title="ar">AR</span></td>' in page
    assert "lantern_pp" in texts.plain(texts.summarise(run))
    assert f"<code>{command}</code>" in page
    links = dict(re.findall(r'<a href="([^"#]+)">([\w.]+)</a>', page.partition("Files:")[2]))
    assert {"summary.csv", "table.tex", "phases.pdf"} <= {*links.values()}
    assert all((tmp_path / address).is_file() for address in links)

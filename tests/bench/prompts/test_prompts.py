"""Prompt sets: files as users and other programs write them, and what is refused."""

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.config.arguments import groups
from bench.config.compose import compose_study
from bench.config.schema import LoaderConfig
from bench.errors import EXPLAINED, PromptError
from bench.prompts import Prompt, load_prompts
from bench.prompts.sources import captions_of


def load(name: str, count: int | None = None, **settings: Any) -> list[Prompt]:
    """The option of that name with these settings."""
    values = yaml.safe_load(groups()["prompts"][name]) | settings
    return load_prompts(LoaderConfig.of(values, "prompts"), count)


def texts(prompts: Sequence[Any]) -> list[str]:
    return [p.text for p in prompts]


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_scenes_are_distinct_held_out_and_prefix_stable():
    many = load("scenes", 300)
    assert len({p.text for p in many}) == 300
    assert load("scenes", 10) == many[:10], "more prompts must not change the first ones"
    assert not {p.text for p in many[:50]} & {p.text for p in load("scenes", 50, split="train")}
    with pytest.raises(EXPLAINED, match="bench"):
        load("scenes", 2, split="bensh")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "a red cube\na blue ring\n\n"),
        ("a.csv", "id,prompt\nx,a red cube\ny,a blue ring\n"),
        ("a.tsv", "Caption\tcategory\na red cube\tc\na blue ring\tc\n"),
        ("a.json", '["a red cube", "a blue ring"]'),
        ("b.json", '[{"prompt": "a red cube"}, {"prompt": "a blue ring", "category": "c"}]'),
    ],
)
def test_file_kinds(tmp_path, name, text):
    assert texts(load("file", 2, path=write(tmp_path, name, text))) == ["a red cube", "a blue ring"]


def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path):
    """U+2028, U+0085 and a vertical tab would cut a prompt in two and shift all that follow."""
    text = "a red\u2028cube\r\na blue\x85ring\na \x0b cat\ra dog"
    for name in ("a.txt", "a.csv"):
        head = "prompt\r\n" if name.endswith("csv") else ""
        found = load("file", path=write(tmp_path, name, head + text.replace("\ra", "\na")))
        assert texts(found) == ["a red\u2028cube", "a blue\x85ring", "a \x0b cat", "a dog"]
    lines = load("parti", path=write(tmp_path, "p.tsv", "Prompt\tCategory\na\u2028b\tc\x85d\n"))
    assert [(p.text, p.category) for p in lines] == [("a\u2028b", "c d")]


def test_white_space_of_a_prompt_is_kept(tmp_path):
    """As the papers' code gives it to the models: 812 of COCO's longest captions have some that
    tidying would drop."""
    given = ["A grey and white cat. ", " two  dogs", "a street\n"]
    path = write(tmp_path, "captions.json", json.dumps(given))
    assert texts(load("coco", path=path)) == texts(load("file", path=path)) == given
    path = write(tmp_path, "p.tsv", "Prompt\tCategory\n A sloth in a go kart.  \tAnimals\n")
    assert texts(load("parti", path=path)) == [" A sloth in a go kart.  "]


def test_a_newline_in_quotes_ends_no_line(tmp_path):
    text = 'id,prompt\n1,"a red\ncube"\n2,"a ""blue""\r\n ring, large"\n'
    found = load("file", path=write(tmp_path, "a.csv", text))
    assert texts(found) == ["a red\ncube", 'a "blue"\r\n ring, large']
    items = json.dumps(["a red\ncube", {"prompt": "a\n\nring"}])
    assert texts(load("file", path=write(tmp_path, "a.json", items))) == [
        "a red\ncube", "a\n\nring",
    ]  # fmt: skip


def test_names_and_prompts_of_other_systems_meet(tmp_path):
    """macOS writes an accent behind its letter (NFD), a keyboard the letter with it (NFC)."""
    both = ["café", unicodedata.normalize("NFD", "café")]
    for of_file, of_image in (both, both[::-1]):
        path = Path(write(tmp_path, "c.json", json.dumps({f"{of_file}.png": "a cup"})))
        assert captions_of([Path(f"{of_image}.png")], path) == ["a cup"]
    with pytest.raises(PromptError, match="are the same"):
        load("file", path=write(tmp_path, "a.txt", "\n".join(both)))
    named = compose_study([f"decoders=[{{decoder: ar, name: '{both[1]}'}}]"]).decoders[0]
    assert named.name == both[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\u2009red\u3000cube\ton\u202fsand", "a red cube on sand"),
        ("\ufeffa red\u200b cube\u2060", "a red cube"),
        ("back\xadground \u202etext\u202c", "background text"),
        ("a \U0001f469\u200d\U0001f680", "a \U0001f469\U0001f680"),
    ],
)
def test_a_caption_reaches_the_model_byte_for_byte_and_is_compared_without_what_has_no_shape(
    tmp_path, text, expected
):
    path = write(tmp_path, "a.json", json.dumps([text]))
    assert texts(load("file", path=path)) == [text]
    twice = write(tmp_path, "b.json", json.dumps([text, f" {expected} "]))
    with pytest.raises(PromptError, match="are the same"):
        load("file", path=twice)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "prompt\n", "has no prompts"),
        ("a.txt", "a cube\n\na ring\n", "prompt 2 is empty"),
        ("a.txt", "a cube\na ring\na cube\n", "prompts 1 and 3 are the same"),
        ("a.json", "{", "not valid JSON"),
        ("a.json", '{"a": 1}', "must hold a list"),
        ("a.json", '[{"id": 1, "prompt": "a", "id": 2}]', "names id twice"),
        ("a.yaml", "- a", "unknown kind of prompt file '.yaml'"),
        ("a.csv", "id,prompt\nx,a cube\nx,a ring\n", "two prompts have the id 'x'"),
        ("a.csv", "id,prompt\n2,a cube\n,a ring\n", "two prompts have the id '2'"),
        ("a.csv", "id,prompt\n1,a cube, red\n", "line 2, has 3 fields, the header 2"),
        ("a.csv", "id,prompt,category\n1,a cube\n", "line 2, has 2 fields, the header 3"),
        ("a.csv", 'id,prompt\n1,"a cube\n2,a ring\n', "unexpected end of data"),
        ("a.tsv", 'prompt\n"hello" cat\n', "each of its quotes twice"),
        ("a.csv", "prompt,Prompt\na,b\n", "a column is named twice"),
        ("a.txt", "a" * 10_001, "has 10001 characters, at most 10000"),
        ("a.txt", "a \x1b[31mred\x1f b\n", "control characters"),
        ("a.json", '["a \\ud800 b"]', "'a \\ud800 b'"),
        ("a.json", '["\\u200b\\u3000"]', "is empty"),
        ("a.json", "[" * 100_000, "not valid JSON (maximum recursion depth"),
        ("a.json", '[{"prompt": "a", "id": [1]}]', "the id of item 1: "),
    ],
)
def test_files_that_would_be_misread_are_refused(tmp_path, name, text, expected):
    with pytest.raises(EXPLAINED) as error:
        load("file", path=write(tmp_path, name, text))
    assert expected in str(error.value) and len(str(error.value)) < 1000


def test_unreadable_files(tmp_path):
    with pytest.raises(EXPLAINED, match="does not exist"):
        load("file", path=str(tmp_path / "none.txt"))
    for name, coding in (("latin.txt", "latin-1"), ("wide.txt", "utf-16")):
        (tmp_path / name).write_bytes("caf\xe9\n".encode(coding))
        with pytest.raises(EXPLAINED, match="not UTF-8"):
            load("file", path=str(tmp_path / name))
    with pytest.raises(EXPLAINED, match="folder"):
        load("file", path=str(tmp_path))


# ---- sets that others publish -------------------------------------------------------------------


def test_parti_categories(tmp_path):
    text = (
        'Prompt\tCategory\tChallenge\tNote\nbond\tAbstract\tBasic\t\na "B" cat\tAnimals\tBasic\t\n'
    )
    path = write(tmp_path, "parti.tsv", text)
    assert texts(load("parti", 2, path=path)) == ["bond", 'a "B" cat']
    assert [p.category for p in load("parti", path=path)] == ["Abstract", "Animals"]


def test_coco_picks_one_caption_an_image_and_keeps_its_id(tmp_path):
    rows = [(9, "a b"), (4, "a c"), (9, "a longer one"), (4, "a c\n "), (9, "as long, too")]
    annotations = [{"image_id": i, "caption": c} for i, c in rows]
    path = write(tmp_path, "captions_val2014.json", json.dumps({"annotations": annotations}))
    longest = load("coco", path=path)
    assert [(p.id, p.text) for p in longest] == [("9", "a longer one"), ("4", "a c\n ")]
    assert texts(load("coco", path=path, caption="first")) == ["a b", "a c"]
    with pytest.raises(EXPLAINED, match="longest"):
        load("coco", path=path, caption="longer")
    with pytest.raises(PromptError, match="not an official COCO"):
        load("coco", 1, path=write(tmp_path, "empty.json", "[]"))


def test_classes():
    assert texts(load("classes", 3)) == ["0", "1", "2"] and len(load("classes")) == 1000
    assert [p.id for p in load("classes", only=[207, 7])] == ["class-0207", "class-0007"]
    config = compose_study(["prompts=classes", "prompts.only=[207,360]", "decoders=[ar]"])
    assert texts(load_prompts(config.prompts, 2)) == ["207", "360"]
    with pytest.raises(EXPLAINED, match="from 0 to 9, found 10"):
        load("classes", 1, classes=10, only=[10])
    with pytest.raises(PromptError, match="are the same"):
        load("classes", 2, only=[5, 5])


def test_geneval_and_dpg_bench_are_read_as_they_are_released(tmp_path):
    lines = [
        {"tag": "single_object", "include": [{"class": "bench", "count": 1}], "prompt": "a bench"},
        {"tag": "counting", "include": [], "prompt": "two clocks"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    found = load("geneval", path=write(tmp_path, "evaluation_metadata.jsonl", text))
    assert found == [
        Prompt("00000", "a bench", "single_object"),
        Prompt("00001", "two clocks", "counting"),
    ]
    with pytest.raises(PromptError, match="no column tag"):
        load("geneval", path=write(tmp_path, "b.jsonl", '{"prompt": "a bench"}'))
    folder = tmp_path / "prompts"
    folder.mkdir()
    with pytest.raises(PromptError, match=r"no \.txt files"):
        load("dpg", path=str(folder))
    write(folder, "partiprompts1.txt", "A long caption.\n")
    write(folder, "COCOval2014000000002338.txt", "A dense one")
    assert load("dpg", path=str(folder)) == [
        Prompt("COCOval2014000000002338", "A dense one"),
        Prompt("partiprompts1", "A long caption."),
    ]


def test_captions_of_more_images_are_taken_with_a_word(tmp_path):
    path = Path(write(tmp_path, "c.json", '{"a": "one", "b": "two", "c": "three"}'))
    files = [tmp_path / "a.png", tmp_path / "c.png"]
    assert captions_of(files, path, part=True) == ["one", "three"]
    with pytest.raises(PromptError, match="part=true takes captions of more images"):
        captions_of(files, path)
    with pytest.raises(PromptError, match="1 images without a caption"):
        captions_of([*files, tmp_path / "d.png"], path, part=True)

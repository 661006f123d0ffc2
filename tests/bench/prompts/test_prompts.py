"""Prompt sets: files as users have them, and what is refused."""

import json

import pytest

from bench.data.errors import ConfigError, PromptError
from bench.prompts import file, parti, scenes


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_scenes_are_distinct_held_out_and_prefix_stable():
    many = scenes.load(300)
    assert len({p.text for p in many}) == 300
    assert scenes.load(10) == many[:10], "more prompts must not change the first ones"
    assert not {p.text for p in many[:50]} & {p.text for p in scenes.load(50, split="train")}
    with pytest.raises(ConfigError, match="bench"):
        scenes.load(2, split="bensh")


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
    assert [p.text for p in file.load(2, write(tmp_path, name, text))] == [
        "a red cube",
        "a blue ring",
    ]


def test_unreadable_files(tmp_path):
    with pytest.raises(PromptError, match="does not exist"):
        file.load(1, str(tmp_path / "none.txt"))
    for name, coding in (("latin.txt", "latin-1"), ("wide.txt", "utf-16")):
        (tmp_path / name).write_bytes("caf\xe9\n".encode(coding))
        with pytest.raises(PromptError, match="not UTF-8"):
            file.load(1, str(tmp_path / name))
    with pytest.raises(PromptError, match="folder"):
        file.load(1, str(tmp_path))


def test_parti_categories(tmp_path):
    text = (
        'Prompt\tCategory\tChallenge\tNote\nbond\tAbstract\tBasic\t\na "B" cat\tAnimals\tBasic\t\n'
    )
    path = write(tmp_path, "parti.tsv", text)
    assert [p.text for p in parti.load(2, path)] == ["bond", 'a "B" cat']
    assert [p.id for p in parti.load(1, path, category="Animals")] == ["parti-0002"]
    with pytest.raises(PromptError, match="Animals"):
        parti.load(1, path, category="Animal")


# ---- files as other programs write them ---------------------------------------------------------


def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path):
    """U+2028, U+0085 and a vertical tab would cut a prompt in two and shift all that follow."""
    text = "a red\u2028cube\r\na blue\x85ring\na \x0b cat\ra dog"
    for name in ("a.txt", "a.csv"):
        head = "prompt\r\n" if name.endswith("csv") else ""
        found = file.load(None, write(tmp_path, name, head + text.replace("\ra", "\na")))
        assert [p.text for p in found] == ["a red cube", "a blue ring", "a cat", "a dog"]
    lines = parti.load(None, write(tmp_path, "p.tsv", "Prompt\tCategory\na\u2028b\tc\x85d\n"))
    assert [(p.text, p.category) for p in lines] == [("a b", "c d")]


def test_a_newline_in_quotes_is_a_space(tmp_path):
    text = 'id,prompt\n1,"a red\ncube"\n2,"a ""blue""\r\n ring, large"\n'
    found = file.load(None, write(tmp_path, "a.csv", text))
    assert [p.text for p in found] == ["a red cube", 'a "blue" ring, large']
    items = json.dumps(["a red\ncube", {"prompt": "a\n\nring"}])
    assert [p.text for p in file.load(None, write(tmp_path, "a.json", items))] == [
        "a red cube",
        "a ring",
    ]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "prompt\n", "has no prompts"),
        ("a.txt", "a cube\n\na ring\n", "prompt 2 is empty"),
        ("a.txt", "a cube\na ring\na cube\n", "prompts 1 and 3 are the same"),
        ("a.json", "{", "not JSON"),
        ("a.json", '{"a": 1}', "must hold a list"),
        ("a.yaml", "- a", "unknown kind of prompt file '.yaml'"),
        ("a.csv", "id,prompt\nx,a cube\nx,a ring\n", "two prompts have the id 'x'"),
        ("a.csv", "id,prompt\n2,a cube\n,a ring\n", "two prompts have the id '2'"),
        ("a.csv", "id,prompt\n1,a cube, red\n", "line 2, has 3 fields, the header 2"),
        ("a.csv", "id,prompt,category\n1,a cube\n", "line 2, has 2 fields, the header 3"),
        ("a.csv", 'id,prompt\n1,"a cube\n2,a ring\n', "unexpected end of data"),
        ("a.tsv", 'prompt\n"hello" cat\n', "each of its quotes twice"),
        ("a.csv", "prompt,Prompt\na,b\n", "a column is named twice"),
        ("a.txt", "a" * 10_001, "has 10001 characters, at most 10000"),
        ("a.txt", "a\x00b\n", "control characters"),
        ("a.json", "[" * 100_000, "nested too deep"),
        ("a.json", '[{"prompt": "a", "prompt": "b"}]', "the key 'prompt' twice"),
        ("a.json", '[{"prompt": "a", "id": [1]}]', "the id of item 1 must be"),
    ],
)
def test_files_that_would_be_misread_are_refused(tmp_path, name, text, expected):
    with pytest.raises(PromptError) as error:
        file.load(None, write(tmp_path, name, text))
    assert expected in str(error.value) and len(str(error.value)) < 1000

"""Every piece of Python in the documents, in its order, as a reader would type it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict

import pytest
from conftest import ROOT

GUIDES = {"docs/python.md": 11, "python/README.md": 1}


@pytest.mark.parametrize("guide", GUIDES)
def test_every_example_runs(guide: str, url: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    text = (ROOT / guide).read_text("utf-8")
    blocks = [(match.start(), match[1]) for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    assert len(blocks) >= GUIDES[guide], "hardly any examples were found"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODELLESS_SERVER", url)
    names: Dict[str, Any] = {"__name__": "guide"}
    for place, block in blocks:
        line = text.count("\n", 0, place) + 1
        code = "\n" * line + block.replace("http://127.0.0.1:8080", url)
        exec(compile(code, str(ROOT / guide), "exec"), names)
    said = capsys.readouterr().out
    assert "Ankle boot" in said
    if guide == "docs/python.md":
        assert "could be met" in said and "nan nan" in said and (tmp_path / "frontier.svg").read_text().startswith("<svg")


def test_the_readme_names_what_is_needed() -> None:
    project = (ROOT / "python/pyproject.toml").read_text("utf-8")
    needed = re.findall(r'^  "(\w+)>=', project.partition("\ndependencies = [")[2].partition("]")[0], re.MULTILINE)
    (said,) = re.findall(r"^\* It needs ([^;]*);", (ROOT / "python/README.md").read_text("utf-8"), re.MULTILINE)
    assert needed and re.findall(r"`(\w+)`", said) == needed

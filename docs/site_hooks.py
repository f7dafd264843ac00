"""Hooks of MkDocs: the navigation is that of index.md, the page of settings gets every option, links to files outside
of docs lead to the repository from which this checkout was cloned, and programs find the pages' text: each beside its
page, and their list in llms.txt (llmstxt.org)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
# `make docs` puts it there, with npm.
MERMAID = DOCS.parent / "build" / "mermaid" / "node_modules" / "mermaid" / "dist" / "mermaid.min.js"
ICON = DOCS.parent / "core" / "http" / "console" / "page" / "icon.svg"
# An address of `git clone` as that of a web page: `git@HOST:PATH.git`, `ssh://git@HOST/PATH.git`, `https://HOST/PATH.git`.
CLONED = re.compile(r"(?:https?://|ssh://)?(?:[^/@]*@)?([\w.-]+\.[\w.-]+)(?::\d+)?[:/](.+?)(?:\.git)?/?")
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
PAGE = re.compile(r"\[([^]]+)\]\(((?!\.\./)[^)#]+\.md)\)")
# A link, with what is code left alone.
LINK = re.compile(r"```.*?```|`[^`\n]+`(?!\])|(!?)\[((?:[^]`]|`[^`]*`)*)\]\(([^)\s]+)\)", re.DOTALL)


def on_config(config: Any) -> Any:
    """A tab for each section of index.md, with its pages in order; the specification's pages under Reference."""
    parts = HEADING.split((DOCS / "index.md").read_text())
    nav: list[dict[str, Any]] = [{"Home": "index.md"}]
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        pages: list[dict[str, Any]] = [{titled(name): path} for name, path in PAGE.findall(text)]
        if title == "Reference":
            pages += [f"spec/{path.name}" for path in sorted((DOCS / "spec").glob("*.md")) if path.name != "README.md"]
        nav.append({title: pages})
    config["nav"] = nav
    asked = ["git", "-C", str(DOCS), "remote", "get-url", "origin"]
    found = CLONED.fullmatch(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip())
    if found:
        config["repo_url"], config["repo_name"] = f"https://{found[1]}/{found[2]}", found[2]
    return config


def titled(name: str) -> str:
    """The name with a capital letter, except for one that has its own, such as gRPC."""
    return name[0].upper() + name[1:] if name.islower() else name


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """A link out of docs, such as one to a result of a benchmark, leads to the repository; without one it becomes its
    text and the path."""
    here = (DOCS / page.file.src_uri).parent
    if page.file.src_uri in ("settings.md", "metrics.md"):
        sys.path.insert(0, str(DOCS.parent))
        from docs.lists import every_setting, with_every_metric

        is_settings = page.file.src_uri == "settings.md"
        markdown = f"{markdown}\n{every_setting()}" if is_settings else with_every_metric(markdown)

    def inside(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        path = (target or "").partition("#")[0]
        if not path or ":" in path or (here / path).resolve().is_relative_to(DOCS):
            return match.group()
        place = (here / path).resolve().relative_to(DOCS.parent)
        if config["repo_url"] and not mark:
            kind = "tree" if (DOCS.parent / place).is_dir() else "blob"
            return f"[{text}]({config['repo_url']}/{kind}/main/{place}{target[len(path) :]})"
        return text if f"`{place}`" in text or text == str(place) else f"{text} (`{place}`)"

    texts[page.file.src_uri] = LINK.sub(inside, markdown)
    return texts[page.file.src_uri]


# By the path of the page below docs.
texts: dict[str, str] = {}


def on_post_build(config: Any) -> None:
    """Add the console's icon, the pages as text, llms.txt, and what draws the diagrams, so that the site needs nothing
    from the internet. Without the latter the diagrams are shown as text.
    """
    site = Path(config["site_dir"])
    shutil.copyfile(ICON, site / ICON.name)
    for path, text in texts.items():
        (site / path).write_text(text)
    sections = texts["index.md"].partition("\n## ")[2].strip()
    head = f"# {config['site_name']}\n\n> {config['site_description']}\n\n## "
    specification = "\n".join(f"* [{path}]({path})" for path in texts if path.startswith("spec/"))
    (site / "llms.txt").write_text(f"{head}{sections}\n\n## Specification\n\n{specification}\n")
    place = site / "javascripts" / MERMAID.name
    place.parent.mkdir(exist_ok=True)
    if MERMAID.is_file():
        shutil.copyfile(MERMAID, place)

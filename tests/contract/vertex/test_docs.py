"""The requests of docs/vertex.md, sent to the container that its first command starts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest

from tests.contract.docs.documented_examples import Example, examples, run, same
from tests.contract.vertex.vertex_container import HOST, VertexContainer
from tests.project import ROOT

DOCUMENT = (ROOT / "docs" / "vertex.md").read_text()
EXAMPLES = examples(DOCUMENT)
_COMMAND = re.compile(r"```bash\n(AIP_MODE=.*?trident serve.*?)\n```", re.DOTALL)


@pytest.fixture(scope="module")
def container(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexContainer]:
    (command,) = _COMMAND.findall(DOCUMENT)
    variables, _, arguments = command.replace("\\\n", "").partition("trident serve")
    given = dict(word.split("=", 1) for word in variables.split())
    assert given.pop("AIP_HTTP_PORT") == "8080"  # another program may use this port here
    storage = ROOT / given.pop("AIP_STORAGE_URI")
    folder = tmp_path_factory.mktemp("container")
    made = VertexContainer(folder, storage, *arguments.split(), probe=given["AIP_HEALTH_ROUTE"], **given)
    with made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
def test_example_answers_as_written(example: Example, container: VertexContainer) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    answer = run(example.at({"localhost:8080": f"{HOST}:{container.port}"}))
    assert same(answer, example.answer), answer


def test_document_shows_every_kind_of_call() -> None:
    texts = [example.text for example in EXAMPLES]
    assert sum('"instances"' in text for text in texts) == 4
    assert sum("X-Vertex-Ai-Triton-Redirect" in text for text in texts) == 1
    assert sum("text/csv" in text for text in texts) == 1
    assert all("localhost:8080/predict" in text for text in texts)

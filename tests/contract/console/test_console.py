"""The console in a real browser, in front of a server with tokens and several processes.

Source: docs/console.md.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from playwright.sync_api import Page, Route, expect

from tests.contract.console.drawing import SEVEN, draw
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import TRIDENT
from tests.contract.servers.simple_model import good_document
from tests.project import ROOT
from tests.waiting import until
from trident.app.version import VERSION

pytestmark = [
    pytest.mark.slow,
    pytest.mark.shapes("two-engines"),
]

TOKEN = "a-token-for-the-console"
HOSTILE = "<img src=x onerror=alert(1)>"
HALF = "half of 100 % (ä)"


def write_half(folder: Path) -> None:
    """A model that answers with its input, four elements of FP16, and whose name cannot stand in a URL as it is."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [4]) for name in ("IN", "OUT")]
    graph = helper.make_graph([helper.make_node("Identity", ["IN"], ["OUT"])], "half", tensors[:1], tensors[1:])
    (folder / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "1" / "model.onnx")


FORMS_CONFIG = f"""backend: "python"
input [
  {", ".join(f'{{ name: "V{size}" data_type: TYPE_FP32 dims: [ {size} ] }}' for size in range(1, 11))},
  {{ name: "CHW" data_type: TYPE_FP32 dims: [ 3, 8, 8 ] }}, {{ name: "HWC" data_type: TYPE_FP32 dims: [ 8, 8, 3 ] }},
  {{ name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "MAYBE" data_type: TYPE_FP32 dims: [ 2 ] optional: true }}
]
output [ {{ name: "GOT" data_type: TYPE_STRING dims: [ -1 ] }} ]
"""
FORMS_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        got = []
        for tensor in request.inputs():
            array = tensor.as_numpy()
            text = f"{tensor.name()} {list(array.shape)}"
            if tensor.name() in ("CHW", "HWC"):
                channels = array if tensor.name() == "CHW" else np.moveaxis(array, 2, 0)
                text += f" {channels.mean(axis=(1, 2)).round(1).tolist()}"
            got.append(text)
        return pb_utils.InferenceResponse([pb_utils.Tensor("GOT", np.array(sorted(got), np.object_))])
"""


def write_forms(folder: Path) -> None:
    """A model with inputs of many shapes, which answers with the shapes that it got, and with the mean colours."""
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(FORMS_CONFIG)
    (folder / "1" / "model.py").write_text(FORMS_MODEL)


def red_picture() -> bytes:
    """A PNG of 16 times 16 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4) + kind + content + zlib.crc32(kind + content).to_bytes(4)

    head = (16).to_bytes(4) * 2 + bytes([8, 2, 0, 0, 0])
    rows = zlib.compress((b"\0" + bytes([255, 0, 0]) * 16) * 16)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def server(
    http_workers: str, shipped_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("console")
    shutil.copytree(shipped_models, folder / "models")
    for name in ("stream_words", "classify_text", "preprocess", "text_classifier"):
        shutil.copytree(ROOT / "deploy/examples" / name, folder / "models" / name)
    write_half(folder / "models" / HALF)
    write_forms(folder / "models" / "forms")
    (folder / "models" / HOSTILE / "1").mkdir(parents=True)
    (folder / "models" / HOSTILE / "1" / "model.onnx").write_text("no model")
    tokens = folder / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    tokens.chmod(0o600)
    options = [
        *("--console=true", f"--auth-token-file={tokens}", "--auth-token-scope=admin", "--shutdown-grace-secs=0"),
        *("--model-control-mode=explicit", "--load-model=*", "--strict-readiness=false", "--exit-on-error=false"),
    ]
    with ServerProcess(folder / "models", folder / "log", *options) as running:
        yield running


def give_token(page: Page, token: str = TOKEN) -> None:
    page.get_by_label("Token", exact=True).fill(token)
    page.get_by_role("button", name="Use the token").click()


def ask(server: ServerProcess, model: str, document: dict[str, Any]) -> None:
    server.json("POST", f"/v2/models/{model}/infer", document)


def test_drawn_digit_is_classified_copied_as_curl_and_plotted(
    open_page: Callable[..., Page], server: ServerProcess
) -> None:
    page = open_page()
    page.get_by_role("link", name="digits").click()
    page.get_by_role("link", name="Try it").click()
    draw(page, SEVEN)
    page.get_by_role("button", name="Send the request").click()
    expect(page.locator(".verdict")).to_have_text("seven")
    expect(page.locator("table.bars tr.best")).to_contain_text("seven")
    command = page.locator("pre.code").inner_text()
    answer = json.loads(subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout)
    assert answer["outputs"][0]["data"][0].endswith(":7:seven")
    page.get_by_role("button", name="curl with binary tensors").click()
    expect(page.locator("pre.code")).to_contain_text("binary_data_size")
    command = page.locator("pre.code").inner_text()
    answer = json.loads(subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout)
    assert answer["outputs"][0]["data"][0].endswith(":7:seven")
    page.get_by_role("button", name="tritonclient.http").click()
    expect(page.locator("pre.code")).to_contain_text("import tritonclient.http")
    page.get_by_role("link", name="Load", exact=True).click()
    expect(page.get_by_label("Executions by batch size")).to_contain_text("3")
    plot = page.get_by_role("img", name="Requests per second").locator("canvas")
    # The plot shows them: it has pixels of the accent somewhere above its base line.
    page.wait_for_function(
        """canvas => {
          const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height / 2);
          for (let i = 0; i < data.length; i += 4)
            if (data[i] < 60 && data[i + 1] > 90 && data[i + 3] > 200) return true;
        }""",
        arg=plot.element_handle(),
    )


def test_stream_events_and_input_errors_are_shown(open_page: Callable[..., Page]) -> None:
    page = open_page("/models/stream_words/try")
    page.get_by_label("Text of text").fill("one two three")
    page.get_by_role("button", name="Send the request").click()
    expect(page.locator(".events li")).to_have_count(3)
    page = open_page("/models/simple/try")
    page.get_by_label("Elements of INPUT0").fill("1, 2, x")
    expect(page.get_by_role("alert")).to_contain_text("“x” is no whole number")
    page.get_by_label("Elements of INPUT0").fill("1, 2, 3")
    expect(page.get_by_role("alert")).to_contain_text("takes 16 elements")
    expect(page.get_by_role("button", name="Send the request")).to_be_disabled()


def test_fp16_input_is_typed_for_a_model_with_an_encoded_name(
    open_page: Callable[..., Page], server: ServerProcess
) -> None:
    page = open_page()
    page.get_by_role("link", name=HALF).first.click()
    page.get_by_role("link", name="Try it").click()
    page.get_by_role("button", name="Numbers").click()
    page.get_by_label("Elements of IN").fill("0.1, -65504, 6e-8, 3")
    page.get_by_role("button", name="Send the request").click()
    expect(page.locator(".cell")).to_have_text(["0.1", "-65,504", "6e-8", "3"])
    command = page.locator("pre.code").inner_text()
    answer = subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout
    assert np.frombuffer(answer[-8:], np.float16).tolist() == np.array([0.1, -65504, 6e-8, 3], np.float16).tolist()
    expect(page.get_by_role("button", name="curl with JSON")).to_be_disabled()
    page.get_by_role("button", name="tritonclient.http").click()
    expect(page.locator("pre.code")).to_contain_text("import tritonclient.http")


def test_inputs_of_all_shapes_are_sent(open_page: Callable[..., Page]) -> None:
    page = open_page("/models/forms/try")
    for layout in ("CHW", "HWC"):
        red: Any = {"name": "red.png", "mimeType": "image/png", "buffer": red_picture()}
        page.get_by_label(f"Picture for {layout}").set_input_files(red)
    for size in range(1, 11):  # a vector is no picture, whatever its length
        expect(page.get_by_label(f"Elements of V{size}", exact=True)).to_have_value(", ".join("1" * size))
    page.get_by_label("Text of TEXT").fill("text")
    page.get_by_role("button", name="Send the request").click()
    got = [*[f"V{size} [{size}]" for size in range(1, 11)], "TEXT [1]"]
    got += ["CHW [3, 8, 8] [1.0, 0.0, 0.0]", "HWC [8, 8, 3] [1.0, 0.0, 0.0]"]
    expect(page.locator(".cell")).to_have_text(sorted(got))
    page.get_by_label("Elements of MAYBE").fill("1 2")
    page.get_by_role("button", name="Send the request").click()
    expect(page.locator(".cell")).to_have_text(sorted([*got, "MAYBE [2]"]))


REFUSED = (
    ("400", "3 times", "simple", "POST /v2/models/simple/infer", "expected 2 inputs but got 0"),
    ("404", "no_such_model", "POST /v2/models/no_such_model/infer", "is not found"),
    ("404", "GET /no/such/path", "Not Found"),
    ("413", "simple", "POST /v2/models/simple/infer", "exceeds the maximum allowed input size"),
    ("401", "POST /v2/repository/models/simple/unload", "a bearer token is required"),
    ("INVALID_ARGUMENT", "simple", "/inference.GRPCInferenceService/ModelInfer", "expected 2 inputs but got 0"),
)


def test_refused_requests_are_shown_and_counted(open_page: Callable[..., Page], server: ServerProcess) -> None:
    for _ in range(3):
        assert server.request("POST", "/v2/models/simple/infer", b'{"inputs": []}')[0] == 400
    assert server.request("POST", "/v2/models/no_such_model/infer", b"{}")[0] == 404
    assert server.request("GET", "/no/such/path?secret=1")[0] == 404
    assert server.request("POST", "/v2/models/simple/infer", bytes(65 << 20))[0] == 413
    assert server.request("POST", "/v2/repository/models/simple/unload", b"{}")[0] == 401
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError):
            infer(b"\x0a\x06simple", timeout=20)  # without inputs
    page = open_page()
    refused = page.get_by_role("region", name="Refused requests")
    for texts in REFUSED:
        row = refused.get_by_role("row")
        for text in texts:
            row = row.filter(has_text=text)
        expect(row).to_have_count(1)
    expect(refused).not_to_contain_text("secret")
    page.goto(page.url.partition("#")[0] + "#/models/simple/requests")
    expect(refused).to_contain_text("expected 2 inputs")
    expect(refused).to_contain_text("the inputs are:")
    expect(refused).not_to_contain_text("no_such_model")
    assert server.metric("trident_http_errors_total", 'model="simple"', 'route="/v2/models/<model>/infer"') >= 3
    # gRPC's counts may be a quarter of a second behind.
    until(lambda: server.metric("trident_grpc_errors_total", 'method="ModelInfer"', 'model="simple"') >= 1)
    assert "no_such_model" not in server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
    command = [TRIDENT, "status", f"http://{server.address}"]
    said = subprocess.run(command, env={**os.environ, "TOKEN": TOKEN}, capture_output=True, text=True, check=False)
    assert "refused in the last minute" in said.stdout.splitlines()[0]


def test_failed_request_without_a_text_is_shown(open_page: Callable[..., Page]) -> None:
    failed = {"model": "simple", "id": "", "ended": "2026-11-29T20:10:36.145Z", "status": "CANCELED", "duration_us": 5}
    page = open_page("/log")
    page.route("**/console/api/troubles*", lambda route: route.fulfill(json={"refused": [], "failed": [failed]}))
    page.goto(page.url.partition("#")[0] + "#/")
    expect(page.get_by_role("region", name="Failed requests")).to_contain_text("the caller went away")


def test_a_picture_and_a_file_become_tensors(open_page: Callable[..., Page]) -> None:
    page = open_page("/models/digits/try")
    page.get_by_role("button", name="Image").click()
    page.get_by_label("Picture for INPUT").set_input_files(ROOT / "docs/console/try-light.png")
    expect(page.get_by_text("scaled to 8")).to_be_visible()
    expect(page.locator("pre.code")).to_contain_text('"shape":[1,1,8,8]')
    page.get_by_role("button", name="File", exact=True).click()
    page.get_by_label("File for INPUT").set_input_files(ROOT / "deploy/digits/4.json")
    page.get_by_role("button", name="Send the request").click()
    expect(page.locator(".verdict")).to_have_text("four")


def test_token_is_prompted_for_and_stored_in_memory_only(open_page: Callable[..., Page]) -> None:
    page = open_page("/log")
    give_token(page, "not-a-token-of-this-server")
    expect(page.get_by_role("alert")).to_contain_text("not accepted")
    give_token(page)
    expect(page.get_by_role("log")).to_contain_text("successfully loaded 'simple'")
    assert (
        page.evaluate("[document.cookie, JSON.stringify({...localStorage, ...sessionStorage})].join()").count(TOKEN)
        == 0
    )
    page.reload()
    expect(page.get_by_role("dialog")).to_be_visible()


def test_text_of_clients_and_models_is_never_interpreted_as_html(
    open_page: Callable[..., Page], server: ServerProcess
) -> None:
    assert server.request("POST", "/v2/models/<script>alert(2)</script>/infer", b"{}")[0] in (400, 404)
    page = open_page()
    expect(page.get_by_role("link", name=HOSTILE).first).to_be_visible()
    page.get_by_role("region", name="Models").get_by_role("link", name=HOSTILE).click()
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("This version does not serve.")
    page = open_page("/log")
    give_token(page)
    expect(page.get_by_role("log")).to_contain_text("<script>alert(2)</script>")
    assert page.locator("main img, main script").count() == 0


def test_a_model_is_unloaded_and_loaded(open_page: Callable[..., Page], server: ServerProcess) -> None:
    page = open_page("/repository")
    give_token(page)
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="stream_words"))
    row.get_by_role("button", name="Unload").click()
    expect(row).to_contain_text("unloaded")
    row.get_by_role("button", name="Load", exact=False).first.click()
    expect(page.get_by_role("alert")).to_contain_text("stream_words is loaded")
    expect(row).to_contain_text("ready")
    changed = page.get_by_role("region", name="What has changed").get_by_role("row")
    expect(changed.last).to_contain_text("stream_words 1unloaded")
    expect(changed.first).to_contain_text("stream_words 1ready")
    # Another site's page cannot send the header.
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    status, _, body = server.request("POST", "/console/api/unload", b'{"name":"simple"}', bearer)
    assert (status, b"Trident-Console" in body) == (400, True)


def test_the_log_is_filtered_and_its_level_changed(open_page: Callable[..., Page], server: ServerProcess) -> None:
    page = open_page("/log")
    give_token(page)
    expect(page.get_by_role("log")).to_contain_text("'simple'")
    # The answer to a look at the whole log that comes when the filter is set does not get into what is filtered.
    held: list[Route] = []
    page.route("**/console/api/log?*", lambda route: held.append(route), times=1)
    until(lambda: held, sleep=lambda seconds: page.wait_for_timeout(1000 * seconds))
    page.get_by_label("Model", exact=True).fill("digits")
    page.keyboard.press("Enter")
    expect(page.get_by_role("log")).to_contain_text("'digits'")
    with page.expect_response(lambda response: "after=0" in response.url and "model=" not in response.url):
        held[0].continue_(url=re.sub(r"after=\d+", "after=0", held[0].request.url))
    with page.expect_response(lambda response: "model=digits" in response.url):
        pass
    expect(page.get_by_role("log")).not_to_contain_text("'simple'")
    # What is typed stays when the log is looked at.
    page.get_by_label("Find in the messages").fill("typed")
    for _ in range(2):
        with page.expect_response(lambda response: "/console/api/log?" in response.url):
            pass
    expect(page.get_by_label("Find in the messages")).to_have_value("typed")
    page.get_by_label("Model", exact=True).fill("")
    # The next request is logged by what the server has set, not by what the page shows.
    with page.expect_response(lambda response: response.request.method == "POST" and "/log/settings" in response.url):
        page.get_by_label("Log verbosely").select_option("1")
    page.get_by_label("Find in the messages").fill("HTTP request:")
    page.keyboard.press("Enter")
    ask(server, "simple", good_document())
    expect(page.get_by_role("log")).to_contain_text("/v2/models/simple/infer")
    page.get_by_label("Log verbosely").select_option("0")


def test_requests_are_traced(open_page: Callable[..., Page], server: ServerProcess) -> None:
    page = open_page("/traces", width=900)
    give_token(page)
    page.get_by_role("button", name="Trace the next 20").click()
    expect(page.get_by_role("button", name="Stop tracing")).to_be_visible()
    text = {"name": "raw_text", "datatype": "BYTES", "shape": [1, 1], "data": ["the engine of my car"]}
    for _ in range(3):
        ask(server, "simple", good_document())
        ask(server, "classify_text", {"inputs": [text]})
    expect(page.get_by_role("img", name="compute").first).to_be_visible()
    expect(page.get_by_text("text_classifier").first).to_be_visible()
    page.get_by_role("button", name="Stop tracing").click()
    expect(page.get_by_role("button", name="Trace the next 20")).to_be_visible()


def test_models_are_sorted_by_keyboard_and_searched(open_page: Callable[..., Page], server: ServerProcess) -> None:
    digits = json.loads((ROOT / "deploy/digits/7.json").read_text())
    for _ in range(20):
        ask(server, "digits", digits)
        ask(server, "simple", good_document())
    page = open_page()
    expect(page.locator(".brand")).to_have_text(f"Trident {VERSION}")
    ensemble = page.get_by_role("row").filter(has=page.get_by_role("link", name="classify_text", exact=True))
    expect(ensemble.locator("td").nth(1)).to_have_text("\u2013")  # a dash: it is on no device of its own
    names = page.locator("table.models tbody th a")
    page.get_by_role("button", name="Requests").focus()
    page.keyboard.press("Enter")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Requests↓")
    expect(names.last).not_to_have_text("digits")
    page.get_by_label("Find a model").fill("SIMP")
    expect(names).to_have_text(["simple"])
    call = page.get_by_role("region", name="Call it").locator("pre.code")
    page.get_by_role("button", name="Python", exact=True).click()
    expect(call).to_contain_text("urlopen")
    answer = subprocess.run([sys.executable, "-c", call.inner_text()], capture_output=True, check=True, text=True)
    assert "'OUTPUT0'" in answer.stdout
    page.get_by_label("Find a model").fill("nothing like it")
    expect(page.get_by_text("No model matches")).to_be_visible()
    page = open_page("/models/digits/configuration")
    expect(page.locator(".crumbs")).to_have_text("Overview / digits")
    expect(page.get_by_role("row").filter(has_text="default_model_filename")).to_contain_text("completed")
    page.get_by_role("link", name="Requests", exact=True).click()
    expect(page.get_by_role("img", name="compute").first).to_be_visible()


def test_every_view_fits_the_width_of_a_phone(open_page: Callable[..., Page]) -> None:
    page = open_page(width=400)
    for view in (
        "/",
        "/models/digits/load",
        "/models/digits/try",
        "/models/digits/requests",
        "/models/digits/configuration",
    ):
        page.goto(page.url.partition("#")[0] + f"#{view}")
        page.wait_for_selector("main .tiles, main .card")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, view


class Prefixed(BaseHTTPRequestHandler):
    """A proxy that puts everything under /a/prefix."""

    def do_GET(self) -> None:
        status, headers, body = 404, [], b""
        if self.path.startswith("/a/prefix/"):
            connection = http.client.HTTPConnection(self.server.target, timeout=60)  # type: ignore[attr-defined]
            connection.request("GET", self.path.removeprefix("/a/prefix"))
            response = connection.getresponse()
            status, headers, body = response.status, response.getheaders(), response.read()
            connection.close()
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("connection", "date", "server"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


def test_console_works_behind_a_proxy_prefix(open_page: Callable[..., Page], server: ServerProcess) -> None:
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Prefixed)
    proxy.target = server.address  # type: ignore[attr-defined]
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        page = open_page(base=f"http://127.0.0.1:{proxy.server_port}/a/prefix")
        expect(page.get_by_role("link", name="digits")).to_be_visible()
        page.goto(f"http://127.0.0.1:{proxy.server_port}/a/prefix/console/#/models/simple/try")
        expect(page.locator("pre.code")).to_contain_text("/a/prefix/v2/models/simple/infer")
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()

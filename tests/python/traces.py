"""OpenTelemetry's own SDK as the client, and its own messages to read what a server sends. Writes the port on which it listens as a
collector, then reads one line: HTTP's address, gRPC's, and a picture."""

import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import requests
import tritonclient.grpc
from calls import Calls, same
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

CLIENT = f"opentelemetry {version('opentelemetry-sdk')}"
came = queue.Queue()


class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        came.put((self.path, self.headers["content-type"], ExportTraceServiceRequest.FromString(body)))

    def log_message(self, *_):
        pass


class Told:
    """All that was told of one trace."""

    def __init__(self, trace):
        self.trace = trace.to_bytes(16, "big")
        self.spans = []
        while not any(name == "run" for _, name, _ in self.spans):
            path, media, message = came.get(timeout=20)
            same((path, media), ("/v1/traces", "application/x-protobuf"))
            for part in message.resource_spans:
                resource = {pair.key: pair.value.string_value for pair in part.resource.attributes}
                for scope in part.scope_spans:
                    same(scope.scope.name, "modelless")
                    found = [span for span in scope.spans if span.trace_id == self.trace]
                    self.spans += [(resource, span.name, span) for span in found]

    def one(self, name):
        found = [(resource, span) for resource, known, span in self.spans if known == name]
        same(len(found), 1)
        return found[0]


def joined(door, ask):
    """A query within a span of the client is told from the gateway to the model's process, below that span."""
    tracer = TracerProvider().get_tracer("a test")
    headers = {}
    with tracer.start_as_current_span("what the client does") as span:
        TraceContextTextMapPropagator().inject(headers)
        context = span.get_span_context()
    ask(headers)
    told = Told(context.trace_id)
    resource, root = told.one("query fashion")
    same(root.parent_span_id, context.span_id.to_bytes(8, "big"))
    same((root.kind, root.status.code), (Span.SPAN_KIND_SERVER, Status.STATUS_CODE_UNSET))
    same(resource["service.name"], "modelless-gateway")
    values = {pair.key: pair.value for pair in root.attributes}
    same(values["modelless.door"].string_value, door)
    assert 0.5 < values["modelless.accuracy"].double_value <= 1, values
    assert values["modelless.batch"].int_value >= 1, values
    same(told.one("answer")[0]["service.name"], "modelless-executor")
    resource, run = told.one("run")
    same(resource["service.name"], "modelless-runner")
    assert root.start_time_unix_nano <= run.start_time_unix_nano < run.end_time_unix_nano <= root.end_time_unix_nano
    ids = {span.span_id for _, _, span in told.spans}
    same(len(ids), len(told.spans))
    for _, name, span in told.spans:
        assert name == "query fashion" or span.parent_span_id in ids, name


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    http, grpc, picture = sys.stdin.readline().split()
    with open(picture, "rb") as file:
        png = file.read()

    def query(headers):
        answer = requests.post(
            f"{http}/v1/tasks/fashion", data=png, headers={"content-type": "image/png", **headers}
        )
        answer.raise_for_status()

    def infer(headers):
        import numpy

        with tritonclient.grpc.InferenceServerClient(grpc) as client:
            image = tritonclient.grpc.InferInput("image", [1, 1], "BYTES")
            image.set_data_from_numpy(numpy.array([[png]], dtype=object))
            client.infer("fashion", [image], headers=headers)

    calls = Calls()
    calls.call(CLIENT, "a query by HTTP", lambda: joined("query", query))
    calls.call(CLIENT, "a query by gRPC", lambda: joined("grpc", infer))
    calls.end()


main()

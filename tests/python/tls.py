"""Clients of others and our own package over TLS with a certificate on both sides. Arguments: HTTP's address, gRPC's, a folder with
`ca.pem`, `a-client.pem` and `a-client.key`, and the folder of our package's source."""

import sys
from pathlib import Path

import gevent.ssl
import grpc
import tritonclient.grpc
import tritonclient.http

http, grpc_at, folder, source = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
sys.path.insert(0, source)

import modelless  # noqa: E402

CA, CERT, KEY = (str(folder / name) for name in ("ca.pem", "a-client.pem", "a-client.key"))


def told(client: str, good: bool, how: str = "by TLS") -> None:
    print(f"{client}\t{how}\t{'ok' if good else 'WRONG'}")


with modelless.Client(http, ca=CA, certificate=(CERT, KEY)) as client:
    told("modelless", client.tasks.list() == [])
for what, trust in [("without certificate", {"ca": CA}), ("without authority", {"certificate": (CERT, KEY)})]:
    try:
        with modelless.Client(http, retries=modelless.Retries(attempts=1), **trust) as client:
            client.tasks.list()
        told("modelless", False, what)
    except modelless.Unreachable as error:
        told("modelless", http in str(error), what)

address = http.replace("https://", "")


def context() -> gevent.ssl.SSLContext:
    made = gevent.ssl.create_default_context(cafile=CA)
    made.load_cert_chain(CERT, KEY)
    return made


triton = tritonclient.http.InferenceServerClient(address, ssl=True, ssl_context_factory=context)
told("tritonclient.http", triton.is_server_live())
triton.close()

triton = tritonclient.grpc.InferenceServerClient(grpc_at, ssl=True, root_certificates=CA, private_key=KEY, certificate_chain=CERT)
told("tritonclient.grpc", triton.is_server_live())
triton.close()

credentials = grpc.ssl_channel_credentials(Path(CA).read_bytes())
with grpc.secure_channel(grpc_at, credentials) as channel:
    try:
        grpc.channel_ready_future(channel).result(timeout=5)
        channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=5)
        told("grpc", False, "without certificate")
    except (grpc.FutureTimeoutError, grpc.RpcError):
        told("grpc", True, "without certificate")

"""moto's EC2 for the tests of the provider `ec2`, with what moto leaves out and with faults that can be ordered.

    python serve.py PORT

It prints one line of JSON when it is ready: keys that moto checks signatures with, and an image that it knows. From then on moto checks
every signature. Beside moto it does:

* `ClientToken`, as AWS documents it: a request that is repeated is the same machine, one with other parameters is refused.
* `PUT /faults` with JSON: `{"none_of": [types], "no_quota_for": [types]}` until they are said anew; `{"throttle": n}`, `{"fail": n}`
  for the next so many calls: refused as too many, or answered with 500; `{"lose": n}` for the next so many starts: done, without an
  answer that anybody could read; `{"late": seconds}`: answered so much later than done, until it is said anew.
* `PUT /second` with a name: a second machine with all tags of the one of that name.
* `PUT /asked`: how often each action came through to moto, since this was last asked.
* `GET /counted`: how many machines there have been, how many ended, and how many ran at once at most, counted whenever one came.
* `GET /running`: all machines that run, with their tags, type, market and user data. `PUT /end` with an id: that one ends.

It ends with its standard input.
"""

import io
import json
import os
import sys
import threading
import time
from urllib.parse import parse_qsl

os.environ["MOTO_ENABLE_AMI_VALIDATION"] = "true"
os.environ["MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION"] = "true"

from moto import settings  # noqa: E402
from moto.core import DEFAULT_ACCOUNT_ID  # noqa: E402
from moto.ec2.models import ec2_backends  # noqa: E402
from moto.iam.models import iam_backends  # noqa: E402
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: E402
from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: E402

REGION = "us-east-1"


def error(code, message):
    return (
        f"<?xml version='1.0'?><Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        "<RequestID>0</RequestID></Response>"
    ).encode()


class Front:
    def __init__(self, app):
        self.app, self.lock = app, threading.Lock()
        self.faults, self.asked, self.tokens, self.most = {}, {}, {}, 0

    def __call__(self, environ, start):
        # One at a time: tokens are looked up and kept around a call.
        with self.lock:
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(body)
            status, told = self.answer(environ, start, body)
            late = self.faults.get("late", 0) if environ["PATH_INFO"] == "/" else 0
        time.sleep(late)
        if status is None:
            return told
        start(status, [("content-length", str(len(told)))])
        return [told]

    def answer(self, environ, start, body):
        path = environ["PATH_INFO"]
        if path == "/faults":
            self.faults.update(json.loads(body))
            return "200 OK", b"{}"
        if path == "/asked":
            told = json.dumps(self.asked).encode()
            self.asked.clear()
            return "200 OK", told
        if path == "/counted":
            started, running = len(backend().all_instances()), len(backend().all_running_instances())
            counted = {"started": started, "ended": started - running, "most": self.most}
            return "200 OK", json.dumps(counted).encode()
        if path == "/running":
            return "200 OK", json.dumps([shown(one) for one in backend().all_running_instances()]).encode()
        if path == "/end":
            backend().terminate_instances([body.decode()])
            return "200 OK", b"{}"
        if path == "/second":
            return "200 OK", second(body.decode())
        asked = dict(parse_qsl(body.decode()))
        action = asked.get("Action")
        if self.counts_down("throttle"):
            return "503 Service Unavailable", error("RequestLimitExceeded", "Request limit exceeded.")
        if self.counts_down("fail"):
            return "500 Internal Server Error", error("InternalError", "An internal error has occurred")
        if action == "RunInstances":
            kind = asked["InstanceType"]
            if kind in self.faults.get("none_of", []):
                why = f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested."
                return "500 Internal Server Error", error("InsufficientInstanceCapacity", why)
            if kind in self.faults.get("no_quota_for", []):
                return "400 Bad Request", error("VcpuLimitExceeded", "You have requested more vCPU capacity than your limit.")
        self.asked[action] = self.asked.get(action, 0) + 1
        status, headers, told = self.moto(environ, asked)
        if action == "RunInstances":
            self.most = max(self.most, len(backend().all_running_instances()))
        if action == "RunInstances" and self.counts_down("lose"):
            return "502 Bad Gateway", b"<html>no answer"
        start(status, headers)
        return None, [told]

    def moto(self, environ, asked):
        token = asked.get("ClientToken")
        known = self.tokens.get(token)
        if known and known[0] != asked:
            refused = error("IdempotentParameterMismatch", "The client token was used with other parameters.")
            return "400 Bad Request", [("content-length", str(len(refused)))], refused
        if known:
            return known[1]
        seen = {}

        def start(status, headers, _=None):
            seen.update(status=status, headers=headers)

        told = b"".join(self.app(environ, start))
        answer = seen["status"], seen["headers"], told
        if token and seen["status"].startswith("200"):
            self.tokens[token] = asked, answer
        return answer

    def counts_down(self, fault):
        left = self.faults.get(fault, 0)
        self.faults[fault] = max(left - 1, 0)
        return left > 0


def backend():
    return ec2_backends[DEFAULT_ACCOUNT_ID][REGION]


def tags_of(one):
    return {tag["key"]: tag["value"] for tag in backend().describe_tags({"resource-id": [one.id]})}


def shown(one):
    data = one.user_data.decode() if one.user_data else ""
    return {"id": one.id, "type": one.instance_type, "market": one.lifecycle, "tags": tags_of(one), "user_data": data}


def second(name):
    (first,) = [one for one in backend().all_running_instances() if tags_of(one)["modelless:machine"] == name]
    tags = tags_of(first)
    made = backend().run_instances(
        first.image_id, 1, first.user_data, [], tags={"instance": tags}, instance_type=first.instance_type, region_name=REGION,
        is_instance_type_default=False, placement=None, subnet_id=None, key_name=None, nics=[],
    )  # fmt: skip
    return made.instances[0].id.encode()


class Quiet(WSGIRequestHandler):
    def log_request(self, *_):
        pass


def main():
    user = "modelless"
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    iam.create_user(REGION, user)
    allowed = ["ec2:RunInstances", "ec2:DescribeInstances", "ec2:TerminateInstances", "ec2:CreateTags"]
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": allowed, "Resource": "*"}]}
    iam.put_user_policy(user, "machines", json.dumps(policy))
    key = iam.create_access_key(user)
    image = backend().describe_images()[0].id
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    front = Front(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", int(sys.argv[1]), front, threaded=True, request_handler=Quiet)
    ready = {"port": server.server_port, "id": key.access_key_id, "secret": key.secret_access_key, "image": image}
    print(json.dumps(ready), flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()

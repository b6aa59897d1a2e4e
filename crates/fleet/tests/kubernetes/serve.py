"""What stands for an API server of Kubernetes where there is none, for the tests of the provider `kubernetes`.

    python serve.py PORT

It prints one line of JSON when it is ready: its port, and a token for whoever may do everything. It keeps objects and answers as an
API server does in what the provider and its tests ask for, no more. Every object it is sent is checked against the schema that
Kubernetes publishes (package `kubernetes-validate`, strict: an unknown field is refused), and every name of a parameter against those
that Kubernetes knows. It also has, as the real one:

* names taken once (409), lists by label in parts, deletion with a uid that has to match, of pods that a node has with a grace period;
* quotas of pods, refused in the words of Kubernetes (403); roles and their bindings, for whoever is impersonated (403);
* subresources `status` and `binding` of pods, by which a test is the kubelet and the scheduler of Kubernetes.

Beside it, faults for the next so many calls, by `PUT /faults` with JSON: `throttle` (429), `conflict` (409, as two who change one
quota get it), `fail` (500), `html` (502 of something in between); and `lose`: done, without an answer.

`PUT /check` with any object of Kubernetes only checks it, as manifests are checked.

It ends with its standard input.
"""

import functools
import json
import re
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import jsonschema
import kubernetes_validate
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

SCHEMAS = "v1.37.0-local-strict"
TOKEN = "may-do-everything"
PATH = re.compile(r"/(?:api/v1|apis/rbac\.authorization\.k8s\.io/v1)/namespaces/([^/]+)/([a-z]+)(?:/([^/]+))?(?:/([a-z]+))?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
KINDS = {
    "pods": "Pod", "podtemplates": "PodTemplate", "resourcequotas": "ResourceQuota", "roles": "Role", "rolebindings": "RoleBinding",
}  # fmt: skip
PARAMETERS = {
    "list": {"labelSelector", "fieldSelector", "limit", "continue", "timeoutSeconds", "resourceVersion", "resourceVersionMatch", "pretty"},
    "get": {"pretty"},
    "create": {"dryRun", "fieldManager", "fieldValidation", "pretty"},
    "patch": {"dryRun", "fieldManager", "fieldValidation", "force", "pretty"},
    "delete": {"dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy", "pretty"},
}
# However many are asked for: an API server may give fewer.
PAGE = 3


class Refusal(Exception):
    def __init__(self, code, reason, message):
        self.code, self.reason, self.message = code, reason, message


@functools.cache
def definitions():
    return Resource.from_contents(schema_contents(f"kubernetes-json-schema/{SCHEMAS}/_definitions.json", SCHEMAS)) @ Registry()


@functools.cache
def schema(kind):
    """What Kubernetes publishes of a kind of object."""
    group = "-rbac" if kind.startswith("Role") else "-meta" if kind == "DeleteOptions" else ""
    own = schema_contents(f"kubernetes-json-schema/{SCHEMAS}/{kind.lower()}{group}-v1.json", SCHEMAS)
    return jsonschema.Draft202012Validator(own, registry=Resource.from_contents(own) @ definitions())


def checked(sent, kind):
    """The object, if Kubernetes would take it."""
    if sent.get("kind", kind) != kind:
        raise Refusal(400, "BadRequest", f"the object is a {sent.get('kind')}, not a {kind}")
    try:
        schema(kind).validate(sent)
    except jsonschema.ValidationError as error:
        where = ".".join(str(part) for part in error.path)
        raise Refusal(422, "Invalid", f"{kind} is invalid: {where}: {error.message}") from error
    meta = sent.get("metadata", {})
    if not NAME.fullmatch(meta.get("name", "")) or len(meta["name"]) > 253:
        raise Refusal(422, "Invalid", f"{kind} is invalid: metadata.name: {meta.get('name')!r}")
    for key, value in (meta.get("labels") or {}).items():
        if not LABEL.fullmatch(value):
            raise Refusal(422, "Invalid", f"{kind} is invalid: metadata.labels: {key}: {value!r}")
    return sent


def merged(old, patch):
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value)
    return new


def ended(pod):
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


class Cluster:
    def __init__(self):
        self.lock, self.faults, self.objects, self.version = threading.Lock(), {}, {}, 0

    def of(self, namespace, kind):
        return self.objects.setdefault((namespace, kind), {})

    def counts_down(self, fault):
        left = self.faults.get(fault, 0)
        self.faults[fault] = max(left - 1, 0)
        return left > 0

    def trouble(self):
        if self.counts_down("throttle"):
            raise Refusal(429, "TooManyRequests", "too many requests, please try again later")
        if self.counts_down("conflict"):
            raise Refusal(409, "Conflict", "Operation cannot be fulfilled on resourcequotas: the object has been modified")
        if self.counts_down("fail"):
            raise Refusal(500, "InternalError", "Internal error occurred: etcd is away")
        if self.counts_down("html"):
            raise Refusal(502, None, "<html>no answer")

    def allow(self, user, namespace, verb, resource):
        """Whoever is impersonated may do what a role says that is bound to him."""
        if user is None:
            return
        for binding in self.of(namespace, "rolebindings").values():
            for subject in binding.get("subjects", []):
                of = subject.get("namespace", namespace)
                name = f"system:serviceaccount:{of}:{subject['name']}" if subject["kind"] == "ServiceAccount" else subject["name"]
                role = self.of(namespace, "roles").get(binding["roleRef"]["name"], {})
                for rule in role.get("rules", []) if name == user else []:
                    if verb in rule["verbs"] and resource in rule["resources"] and "" in rule["apiGroups"]:
                        return
        why = f'{resource} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group "" in the namespace "{namespace}"'
        raise Refusal(403, "Forbidden", why)

    def quota(self, namespace, name):
        used = sum(1 for pod in self.of(namespace, "pods").values() if not ended(pod))
        for quota in self.of(namespace, "resourcequotas").values():
            hard = quota.get("status", {}).get("hard", {}).get("pods")
            if hard is not None and used >= int(hard):
                why = f'pods "{name}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, requested: pods=1, '
                raise Refusal(403, "Forbidden", why + f"used: pods={used}, limited: pods={hard}")

    def create(self, namespace, resource, sent):
        made = checked(sent, KINDS[resource])
        meta = made["metadata"]
        there = self.of(namespace, resource)
        if meta["name"] in there:
            raise Refusal(409, "AlreadyExists", f'{resource} "{meta["name"]}" already exists')
        if resource == "pods":
            self.quota(namespace, meta["name"])
            made["status"] = {"phase": "Pending"}
        self.version += 1
        seconds = f"2026-01-01T{self.version // 3600 % 24:02}:{self.version // 60 % 60:02}:{self.version % 60:02}Z"
        meta.update(namespace=namespace, uid=str(uuid.uuid4()), resourceVersion=str(self.version), creationTimestamp=seconds)
        there[meta["name"]] = made
        return 201, made

    def found(self, namespace, resource, name):
        there = self.of(namespace, resource).get(name)
        if there is None:
            raise Refusal(404, "NotFound", f'{resource} "{name}" not found')
        return there

    def list(self, namespace, resource, asked):
        wanted = dict(part.split("=", 1) for part in asked.get("labelSelector", "").split(",") if part)
        labels = lambda one: one["metadata"].get("labels") or {}  # noqa: E731
        all_of_it = [one for _, one in sorted(self.of(namespace, resource).items()) if wanted.items() <= labels(one).items()]
        start = int(asked.get("continue") or 0)
        end = start + min(PAGE, int(asked.get("limit") or PAGE))
        meta = {"resourceVersion": str(self.version)}
        if end < len(all_of_it):
            meta["continue"] = str(end)
        return 200, {"apiVersion": "v1", "kind": f"{KINDS[resource]}List", "metadata": meta, "items": all_of_it[start:end]}

    def delete(self, namespace, resource, name, sent):
        options = {"apiVersion": "v1", "kind": "DeleteOptions", **(sent or {})}
        try:
            schema("DeleteOptions").validate(options)
        except jsonschema.ValidationError as error:
            raise Refusal(400, "BadRequest", f"DeleteOptions: {error.message}") from error
        there = self.found(namespace, resource, name)
        uid = (options.get("preconditions") or {}).get("uid")
        if uid not in (None, there["metadata"]["uid"]):
            raise Refusal(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")
        on_a_node = there.get("spec", {}).get("nodeName") and not ended(there)
        if resource == "pods" and on_a_node and options.get("gracePeriodSeconds") != 0:
            there["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
            there["metadata"]["deletionGracePeriodSeconds"] = there["spec"].get("terminationGracePeriodSeconds", 30)
        else:
            del self.of(namespace, resource)[name]
        return 200, there

    def answer(self, verb, target, sent, user):
        url = urlsplit(target)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        if verb == "PUT" and url.path == "/check":
            try:
                return 200, {"checked": kubernetes_validate.validate(sent, "1.37", strict=True)}
            except kubernetes_validate.ValidationError as error:
                raise Refusal(422, "Invalid", error.message) from error
        if verb == "POST" and url.path == "/api/v1/namespaces":
            checked(sent, "Namespace")
            return 201, sent
        parts = PATH.fullmatch(url.path)
        if not parts or parts[2] not in KINDS:
            raise Refusal(404, "NotFound", f"the server could not find the requested resource {url.path}")
        namespace, resource, name, part = parts.groups()
        verb = {"POST": "create", "DELETE": "delete", "PATCH": "patch", "GET": "get" if name else "list"}[verb]
        unknown = asked.keys() - PARAMETERS[verb]
        if unknown:
            raise Refusal(400, "BadRequest", f"unknown parameters of {verb}: {', '.join(sorted(unknown))}")
        self.allow(user, namespace, verb, resource)
        self.trouble()
        if verb == "create" and part == "binding":
            checked(sent, "Binding")
            self.found(namespace, resource, name)["spec"]["nodeName"] = sent["target"]["name"]
            return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}
        if verb == "create":
            return self.create(namespace, resource, sent)
        if verb == "list":
            return self.list(namespace, resource, asked)
        if verb == "get":
            return 200, self.found(namespace, resource, name)
        if verb == "patch" and part == "status":
            there = self.found(namespace, resource, name)
            there["status"] = merged(there.get("status"), sent["status"])
            return 200, there
        if verb == "delete":
            return self.delete(namespace, resource, name, sent)
        raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


CLUSTER = Cluster()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle_one(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        sent = json.loads(body) if body else None
        if self.path == "/faults":
            CLUSTER.faults.update(sent)
            return self.tell(200, {})
        lost = False
        try:
            if self.headers.get("authorization") != f"Bearer {TOKEN}":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            with CLUSTER.lock:
                code, told = CLUSTER.answer(self.command, self.path, sent, self.headers.get("impersonate-user"))
                lost = self.command == "POST" and CLUSTER.counts_down("lose")
        except Refusal as no:
            code, told = no.code, no.message
            if no.reason:
                told = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": no.message,
                        "reason": no.reason, "code": no.code}  # fmt: skip
        if lost:
            self.close_connection = True
            return None
        return self.tell(code, told)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

    def tell(self, code, told):
        text = told if isinstance(told, str) else json.dumps(told)
        self.send_response(code)
        self.send_header("content-type", "text/html" if isinstance(told, str) else "application/json")
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def main():
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    server.daemon_threads = True
    print(json.dumps({"port": server.server_port, "token": TOKEN}), flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()

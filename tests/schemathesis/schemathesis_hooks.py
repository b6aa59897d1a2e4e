"""What the document of a server cannot know: what there is on this one, which is the demo.

Nothing here takes anything away from what the document allows; see each function.
"""

import schemathesis

KNOWN = {
    "task": ["fashion", "fashion-tensor"],
    "model": ["cnn_s", "cnn_m", "cnn_l"],
    "version": ["1", "2"],
    "node": ["local"],
    "tenant": ["other"],
}


@schemathesis.hook
def before_load_schema(context, schema):
    """Half of the names in paths are of things that exist, so that more is looked at than a 404.

    Except where they would be deleted. The name is one of these or any that is allowed: together no other than are allowed.
    """
    for path in schema["paths"].values():
        for method, operation in path.items():
            if method == "delete":
                continue
            for parameter in operation.get("parameters", []):
                known = KNOWN.get(parameter["name"])
                if parameter["in"] == "path" and known:
                    parameter["schema"] = {"anyOf": [{"type": "string", "enum": known}, parameter["schema"]]}


@schemathesis.hook
def map_body(context, body):
    """A whole number is written without a point: 1.0 is 1 to the schema, and to who reads the body it is another type."""
    return whole(body)


def whole(value):
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    return value


@schemathesis.hook
def map_case(context, case):
    """A goal is given in one place: in two it must be the same, which a schema cannot say. And what waits for something to happen
    waits for a tenth of a second at most: by the second it would take minutes and find nothing else."""
    wait = (case.query or {}).get("wait_ms")
    if isinstance(wait, int) and wait > 100:
        case.query["wait_ms"] = 100 + wait % 10
    taken = set(case.query or {})
    for name in taken if case.headers else ():
        case.headers.pop("modelless-" + str(name).replace("_", "-"), None)
    for name in case.headers or {}:
        taken.add(str(name).lower().removeprefix("modelless-").replace("-", "_"))
    if isinstance(case.body, dict) and isinstance(case.body.get("goals"), dict):
        case.body["goals"] = {name: value for name, value in case.body["goals"].items() if name not in taken}
    return case

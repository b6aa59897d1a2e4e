"""TorchScript as ONNX: its code is read as the Python that it is, and followed with tensors that are names in a graph.

Nothing of it is run: modules and their methods are followed into, numbers and lists are computed here, and what is done to
tensors becomes nodes. Both what `torch.jit.trace` and most of what `torch.jit.script` writes can be followed; what depends on a
tensor's content cannot. An operator that is not in [`Operators`] is refused by its name.
"""

import ast
import operator

import numpy as np
from onnx import TensorProto

from .archive import Archive, Module
from .errors import BadInput
from .operators import Operators, Tensor, refused

# Types as the adapter calls them.
TYPES = {"FP32": "FLOAT", "FP16": "FLOAT16", "FP64": "DOUBLE"} | {name: name for name in ("BOOL", "UINT8", "INT8", "INT32", "INT64")}
# Calls within each other; more is no model's.
DEEPEST = 64
BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Div: operator.truediv}
COMPARED = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


class Given(Exception):
    """A function gives something back."""


class Code:
    """All functions of a file, by their whole name."""

    def __init__(self, texts):
        self.functions, self.methods = {}, {}
        for place, text in texts.items():
            try:
                parsed = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError) as error:
                raise BadInput("corrupt-model", f"the model's code cannot be read: {error}") from error
            for one in parsed.body:
                if isinstance(one, ast.FunctionDef):
                    self.functions[f"{place}.{one.name}"] = one
                elif isinstance(one, ast.ClassDef):
                    for method in one.body:
                        if isinstance(method, ast.FunctionDef):
                            self.methods[f"{place}.{one.name}", method.name] = method


class Follower:
    """Follows one `forward` through everything that it calls."""

    def __init__(self, archive):
        self.archive, self.code = archive, Code(archive.code)
        self.graph = Operators()
        self.depth = 0

    def forward(self, inputs):
        return self.method(self.archive.module, "forward", inputs)

    def method(self, module, name, given, named=None):
        found = self.code.methods.get((module.kind, name))
        if found is None:
            raise refused(f"{module.kind}.{name}")
        return self.function(found, [module, *given], named or {})

    def function(self, about, given, named):
        names = [argument.arg for argument in about.args.args]
        defaults = about.args.defaults
        values = dict(zip(names[len(names) - len(defaults) :], (self.value(default, {}) for default in defaults)))
        values |= dict(zip(names, given)) | named
        self.depth += 1
        if self.depth > DEEPEST:
            raise BadInput("unknown-operator", "the model calls itself, which is not converted")
        try:
            self.body(about.body, values)
        except Given as given_back:
            return given_back.args[0]
        finally:
            self.depth -= 1
        return None

    def body(self, lines, values):
        for line in lines:
            match line:
                case ast.Return():
                    raise Given(None if line.value is None else self.value(line.value, values))
                case ast.Assign(targets=[target]):
                    self.assign(target, self.value(line.value, values), values)
                case ast.AnnAssign(target=target, value=value) if value is not None:
                    self.assign(target, self.value(value, values), values)
                case ast.Expr():
                    self.value(line.value, values)
                case ast.If():
                    self.body(line.body if self.known(line.test, values) else line.orelse, values)
                case ast.Pass() | ast.AnnAssign():
                    pass
                case ast.Raise():
                    raise BadInput("unknown-operator", "the model raises an error for inputs of this shape")
                case ast.Assert():
                    pass
                case _:
                    raise refused(f"a {type(line).__name__.lower()} statement")

    def assign(self, target, value, values):
        if isinstance(target, ast.Name):
            values[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            parts = list(value)
            for one, part in zip(target.elts, parts):
                self.assign(one, part, values)
        else:
            raise refused("what is assigned to a part of something")

    def known(self, test, values):
        """A condition has to be known without looking into a tensor."""
        value = self.value(test, values)
        if isinstance(value, Tensor):
            raise refused("a condition on what a tensor holds")
        return bool(value)

    def value(self, at, values):
        match at:
            case ast.Constant(value=value):
                return value
            case ast.Name(id="CONSTANTS"):
                return "CONSTANTS"
            case ast.Name(id=name):
                if name not in values:
                    raise refused(f"the name {name}")
                return values[name]
            case ast.Attribute(value=ast.Name(id="CONSTANTS"), attr=name):
                return self.constant(int(name.removeprefix("c")))
            case ast.Attribute():
                return self.held(self.value(at.value, values), at.attr)
            case ast.List(elts=parts):
                return [self.value(part, values) for part in parts]
            case ast.Tuple(elts=parts):
                return tuple(self.value(part, values) for part in parts)
            case ast.Dict():
                return dict(zip((self.value(key, values) for key in at.keys), (self.value(one, values) for one in at.values)))
            case ast.UnaryOp(op=ast.USub()):
                return -self.value(at.operand, values)
            case ast.UnaryOp(op=ast.Not()):
                return not self.known(at.operand, values)
            case ast.BinOp() if type(at.op) in BINARY:
                return self.arithmetic(type(at.op), self.value(at.left, values), self.value(at.right, values))
            case ast.BoolOp():
                parts = (self.known(part, values) for part in at.values)
                return all(parts) if isinstance(at.op, ast.And) else any(parts)
            case ast.Compare(ops=[how], left=left, comparators=[right]) if type(how) in COMPARED:
                one, other = self.value(left, values), self.value(right, values)
                if isinstance(one, Tensor) and other is not None or isinstance(other, Tensor) and one is not None:
                    raise refused("a comparison of what is only known while it runs")
                return COMPARED[type(how)](one, other)
            case ast.IfExp():
                return self.value(at.body if self.known(at.test, values) else at.orelse, values)
            case ast.Subscript():
                return self.value(at.value, values)[self.value(at.slice, values)]
            case ast.Call():
                return self.call(at, values)
        raise refused(f"a {type(at).__name__} expression")

    def arithmetic(self, how, one, other):
        if isinstance(one, Tensor) or isinstance(other, Tensor):
            name = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floor_divide", ast.Div: "div"}[how]
            return self.graph.call(name, [one, other], {})
        return BINARY[how](one, other)

    def constant(self, number):
        return self.graph.weight(self.archive.constants[number])

    def held(self, module, name):
        if not isinstance(module, Module) or name not in module.holds:
            raise refused(f"the attribute {name}")
        value = module.holds[name]
        return self.graph.weight(value) if isinstance(value, np.ndarray) else value

    def call(self, at, values):
        whole = dotted(at.func)
        given = lambda: [self.value(one, values) for one in at.args]
        named = lambda: {one.arg: self.value(one.value, values) for one in at.keywords}
        match whole:
            case "annotate" | "unchecked_cast":
                return self.value(at.args[1], values)
            case "uninitialized":
                return None
            case "getattr":
                return self.held(self.value(at.args[0], values), self.value(at.args[1], values))
            case "float" if isinstance(at.args[0], ast.Constant) and isinstance(at.args[0].value, str):
                return float(at.args[0].value)
            case "int" | "float" | "bool":
                value = self.value(at.args[0], values)
                return value if isinstance(value, Tensor) else {"int": int, "float": float, "bool": bool}[whole](value)
        if whole is not None and whole.startswith("torch."):
            return self.graph.call(whole.removeprefix("torch."), given(), named())
        if whole is not None and whole.startswith("ops.prim."):
            return self.graph.call(whole.removeprefix("ops.prim."), given(), named())
        if whole in self.code.functions:
            return self.function(self.code.functions[whole], given(), named())
        if isinstance(at.func, ast.Attribute):
            return self.method(self.value(at.func.value, values), at.func.attr, given(), named())
        raise refused(whole or "a call")


def dotted(at):
    """A name with dots in it, or None."""
    parts = []
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    if not isinstance(at, ast.Name):
        return None
    return ".".join([at.id, *reversed(parts)])


def converted(content, inputs, outputs):
    """A model of what is in a file. `inputs` are names, types and shapes of one item each; `outputs` are names, where some are
    known."""
    follower = Follower(Archive(content))
    takes = follower.code.methods.get((follower.archive.module.kind, "forward"))
    if takes is None:
        raise BadInput("corrupt-model", "the model has no `forward`")
    graph = follower.graph
    given = [graph.input(one["name"], getattr(TensorProto, TYPES[one["dtype"]]), ["N", *one["shape"]]) for one in inputs]
    try:
        made = follower.forward(given)
    except BadInput:
        raise
    except RecursionError as error:
        raise BadInput("unknown-operator", "the model's code lies too deep in itself") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise BadInput("unknown-operator", f"the model's code does something that is not converted: {error}") from error
    return graph.whole(named(made, outputs))


def named(made, known):
    """What is given back, with names: those of a dictionary, the known ones in their order, or those that the engine gives."""
    if isinstance(made, dict):
        rows = list(made.items())
    else:
        row = list(made) if isinstance(made, list | tuple) else [made]
        usual = ["output"] if len(row) == 1 else [f"output_{number}" for number in range(len(row))]
        rows = list(zip([*known, *usual[len(known) :]], row))
    if not rows or not all(isinstance(value, Tensor) for _, value in rows):
        raise BadInput("unknown-operator", "the model gives back something that is no tensor")
    return rows

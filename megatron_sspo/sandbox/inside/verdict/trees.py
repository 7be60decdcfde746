"""Helpers for the tests' syntax trees."""

import ast

RECORD = "__record__"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)
TYPE_TESTS = ("isinstance", "type", "hasattr", "callable", "issubclass")


def walk(root: ast.AST) -> list[ast.AST]:
    """Returns the nodes of a syntax tree, in the order of `ast.walk`, without contexts such as `Load`."""
    nodes = [root]
    for node in nodes:  # the list grows while it is read
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                nodes.extend([part for part in value if isinstance(part, ast.AST)])
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                nodes.append(value)
    return nodes


def is_empty(node: ast.AST) -> bool:
    """Returns whether an argument is written as an empty value or as zero."""
    match node:
        case ast.Constant(value=value):
            return not value
        case ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Dict(keys=[]):
            return True
        case ast.Call(func=ast.Name(id="set" | "list" | "dict" | "tuple"), args=[]):
            return True
    return False


def only_logs(statement: ast.stmt) -> bool:
    """Returns whether a statement of a handler does nothing, or only prints or logs a message."""
    if isinstance(statement, ast.Pass):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and last_name(call.func) in (
        "print",
        "print_exc",
        "error",
        "warning",
        "info",
        "write",
    )


def can_be_delayed(node: ast.AST) -> bool:
    """Returns whether an expression may be put into a lambda."""
    forbidden = (ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr)
    names = {"super", "locals", "vars", "dir", "eval", "exec", "__class__"}
    return not any(
        isinstance(part, forbidden)
        or (isinstance(part, ast.comprehension) and part.is_async)
        or (isinstance(part, ast.Name) and part.id in names)
        for part in walk(node)
    )


def last_name(node: ast.AST) -> str:
    """Returns `c` for `a.b.c`, and `a` for the plain name `a`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def record_call(method: str, *arguments: ast.expr) -> ast.Call:
    """Returns a call of a method of the record."""
    return ast.Call(ast.Attribute(ast.Name(RECORD, ast.Load()), method, ast.Load()), list(arguments), [])


def delayed(node: ast.expr) -> ast.Lambda:
    """Returns a lambda that evaluates an expression."""
    nothing = ast.arguments(
        posonlyargs=[], args=[], vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[]
    )
    return ast.copy_location(ast.Lambda(nothing, node), node)


def statement(call: ast.Call, place: ast.AST) -> ast.stmt:
    """Returns a call as a statement, with the line of another node."""
    return ast.copy_location(ast.Expr(call), place)

"""The text of a compiled program as computations of instructions.

Only what costs depend on is read: opcodes, types, operands, and the computations that
an instruction calls. The text comes from `compiled.as_text()`: it is scheduled HLO.
"""

import re
from typing import NamedTuple

# `name = ` and what follows; a computation's first line ends with a brace.
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_METADATA = re.compile(r',? metadata=\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}')
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CALLED = re.compile(
    r"\b(body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
)
_SIDES = ("true_computation", "false_computation")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")


class Instruction(NamedTuple):
    """One line of a computation.

    Attributes:
      name: its name, which is unique in the program.
      type: the type of its result, with layout and memory space.
      opcode: such as `fusion` or `while`.
      operands: names of instructions of the same computation; for a constant, its
        literal.
      attributes: the rest of the line, without metadata.
      called: names of the computations it calls, by role: `body`, `condition`,
        `calls`, `to_apply`.
      branches: names of the computations that a conditional chooses from.
      op_name: its path in the JAX program.
      is_root: whether it is the result of its computation.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    called: dict[str, str]
    branches: tuple[str, ...]
    op_name: str
    is_root: bool


class Module(NamedTuple):
    """A program.

    Attributes:
      computations: lists of instructions, in the order of the schedule, by name.
      entry: the name of the computation that is run.
    """

    computations: dict[str, list[Instruction]]
    entry: str


def parse(text: str) -> Module:
    """Reads the text of a compiled program.

    Raises:
      ValueError: if it has no entry computation.
    """
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = computations.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.append(_instruction(match[2], match[3], bool(match[1])))
    if not entry:
        raise ValueError("expected the text of an HLO module: it has no ENTRY")
    return Module(computations, entry)


def root(instructions: list[Instruction]) -> Instruction:
    """The instruction that is the result of a computation."""
    return next(i for i in instructions if i.is_root)


def _instruction(name, line, is_root):
    op_name = _OP_NAME.search(line)
    line = _METADATA.sub("", line)
    type_, line = _type_and_rest(line)
    opcode, _, line = line.partition("(")
    inside, attributes = _balanced(line)
    called = dict(_CALLED.findall(attributes))
    branches = _BRANCHES.search(attributes)
    names = re.findall(r"[\w.\-]+", branches[1]) if branches else []
    names += [
        called[k] for k in ("true_computation", "false_computation") if k in called
    ]
    return Instruction(
        name=name,
        type=type_,
        opcode=opcode.strip(),
        operands=_operands(inside),
        attributes=attributes.lstrip(", "),
        called=called,
        branches=tuple(names),
        op_name=op_name[1] if op_name else "",
        is_root=is_root,
    )


def _type_and_rest(line):
    """Splits off the type: a word, or a tuple in balanced parentheses."""
    if not line.startswith("("):
        type_, _, rest = line.partition(" ")
        return type_, rest
    inside, rest = _balanced(line[1:])
    return f"({inside})", rest


def _balanced(line):
    """The text before the closing parenthesis, and the text after it."""
    depth = 1
    for match in re.finditer(r"[()]", line):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return line[: match.start()], line[match.end() :]
    return line, ""


def _operands(inside):
    if "%" in inside:
        return tuple(re.findall(r"%([\w.\-]+)", inside))
    return tuple(word.strip() for word in inside.split(",") if word.strip())

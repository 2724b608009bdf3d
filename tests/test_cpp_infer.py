"""The generated C++ infers the shapes that the Python of the contract infers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import List, Sequence

import pytest

from aclnn_adapter.cpp_infer import shape_function
from aclnn_adapter.operators import OPERATORS, UNKNOWN, resolve

# The function's shapes from the command line, as numbers between commas; what it returns, one shape a line.
_MAIN = """
#include <cstdio>
#include <sstream>
#include <string>

void show(const Shape &shape) {
  for (const std::int64_t dim : shape) std::printf("%ld ", static_cast<long>(dim));
  std::printf("\\n");
}
void show(const std::vector<Shape> &shapes) {
  for (const Shape &shape : shapes) show(shape);
}

int main(int count, char **texts) {
  std::vector<Shape> shapes(static_cast<std::size_t>(count - 1));
  std::vector<int> ndims;
  std::vector<std::int64_t *> pointers;
  for (int i = 1; i < count; ++i) {
    std::istringstream text(texts[i]);
    Shape &shape = shapes[static_cast<std::size_t>(i - 1)];
    for (std::string dim; std::getline(text, dim, ',');) shape.push_back(std::stol(dim));
  }
  for (Shape &shape : shapes) {
    ndims.push_back(static_cast<int>(shape.size()));
    pointers.push_back(shape.data());
  }
  show(FUNCTION(ndims.data(), pointers.data(), nullptr));
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ was not found on PATH")
@pytest.mark.parametrize("name", ["aclnnMhcPreBackward", "aclnnMhcSinkhorn", "aclnnMhcPreSinkhorn", "aclnnMhcPost"])
def test_shapes_are_those_of_the_contract(tmp_path: Path, name: str) -> None:
    operator, known = OPERATORS[name], {"I": 20}
    source, program = tmp_path / "infer.cc", tmp_path / "infer"
    source.write_text(shape_function(operator, **known) + _MAIN.replace("FUNCTION", f"{name}InferShape"))
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", "-std=c++17", *warnings, "-o", str(program), str(source)], check=True)

    def inferred(shapes: Sequence[Sequence[int]]) -> List[List[int]]:
        texts = [",".join(map(str, shape)) for shape in shapes]
        done = subprocess.run([str(program), *texts], check=True, capture_output=True, text=True)
        return [[int(dim) for dim in line.split()] for line in done.stdout.splitlines()]

    for tokens in ((2, 3), (6,), (UNKNOWN, 3), (UNKNOWN, UNKNOWN), (UNKNOWN,)):
        for n in (4, UNKNOWN):
            d, f = (64, 24) if n > 0 else (UNKNOWN, UNKNOWN)
            sizes = {"T": tokens, "N": (n,), "D": (d,), "F": (f,), "I": (20,)}
            shapes = [resolve(a.shape, sizes) for a in operator.inputs]
            assert inferred(shapes) == [list(resolve(a.shape, sizes)) for a in operator.outputs], (tokens, n)
    unknown_rank = [(-2,) for _ in operator.inputs]
    assert inferred(unknown_rank) == [[-2] for _ in operator.outputs]

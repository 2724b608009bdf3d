"""The aclnn calls that are compiled into torch_npu: which C++ types each of them passes. Nothing is run.

torch_npu makes every aclnn call through a function template, ``hit_cache<TYPES...>(..., "aclnnName", ..., arguments)``.
Inside is a lambda in a ``std::function``, so the library holds the lambda's type as a string, which spells TYPES, even
when it is stripped of symbols. The rest is reading which call belongs to which string::

    aclnnName <- function that makes the call -> hit_cache<TYPES...> -> manager of the std::function -> type -> string

Every arrow is an address in the code: a relative one behind ``lea`` or ``call``.
"""

from __future__ import annotations

import bisect
import re
import struct
from typing import Dict, Iterator, List, Sequence, Set, Tuple

from .mangling import MangledNameError, template_arguments

Types = Tuple[str, ...]

_TEMPLATE = "hit_cache"
_X86_64 = 62
_LOAD, _EXCEPTION_TABLE, _EXECUTABLE = 1, 0x6474E550, 1
_SECTION_RELA = 4
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_RELA = struct.Struct("<QQq")
_PAIR = struct.Struct("<ii")
_DISPLACEMENT = struct.Struct("<i")
_EXCEPTION_TABLE_START = b"\x01\x1b\x03\x3b"  # version 1; the encodings that GNU and LLVM linkers write
_LEA = re.compile(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]", re.DOTALL)  # lea register, [rip + displacement]
_LEA_SIZE, _CALL_SIZE = 7, 5


class NotReadableError(ValueError):
    """The bytes are no library from which calls can be read."""


class Library:
    """A shared library in memory."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise NotReadableError("it is not a little-endian 64-bit ELF library")
        self.data = data
        (self.machine,) = struct.unpack_from("<H", data, 18)
        (table,) = struct.unpack_from("<Q", data, 0x20)
        entry, count = struct.unpack_from("<HH", data, 0x36)
        headers = [_PROGRAM_HEADER.unpack_from(data, table + i * entry) for i in range(count)]
        self.segments = [h for h in headers if h[0] == _LOAD]
        self.exceptions = [h for h in headers if h[0] == _EXCEPTION_TABLE]

    def argument_lists(self) -> Dict[str, Types]:
        """The types of every instance of the template, by the mangled name that spells them."""
        found: Dict[str, Types] = {}
        for _, name in self._type_names():
            try:
                found[name] = template_arguments(name, _TEMPLATE)
            except MangledNameError:
                continue  # types that no operator here has
        return found

    def calls(self, operators: Sequence[str]) -> Dict[str, Set[Types]]:
        """The types that the calls of some aclnn operators pass; operators whose name is not there are left out."""
        if self.machine != _X86_64:
            raise NotReadableError("only code for x86-64 is read")
        named = {at: name for name in operators for at in self._strings(name)}
        references = list(self._references())
        templates = self._templates(references)
        lists = self.argument_lists()
        mentions = sorted((at, named[target]) for at, target in references if target in named)
        positions = [at for at, _ in mentions]
        found: Dict[str, Set[Types]] = {name: set() for name in named.values()}
        for function in {self._function(at) for at in positions}:
            for at, target in self._direct_calls(function):
                before = bisect.bisect(positions, at) - 1
                if target in templates and before >= 0 and templates[target] in lists:
                    found[mentions[before][1]].add(lists[templates[target]])
        return found

    def _templates(self, references: Sequence[Tuple[int, int]]) -> Dict[int, str]:
        """Where the code of each instance of the template begins, and its mangled name."""
        names = dict(self._type_names())
        # A type's description in memory: a pointer to its class, and then the one to its name that is relocated here.
        types = {place - 8: names[target] for place, target in self._relocations() if target in names}
        managers = {self._function(at): types[target] for at, target in references if target in types}
        return {self._function(at): managers[target] for at, target in references if target in managers}

    def _type_names(self) -> Iterator[Tuple[int, str]]:
        pattern = rb"\0(\*?Z(%d%bIJ[!-~]+?)EUlvE[0-9]*_)\0" % (len(_TEMPLATE), _TEMPLATE.encode())
        for match in re.finditer(pattern, self.data):
            yield self._address(match.start(1)), match.group(2).decode()

    def _strings(self, text: str) -> Iterator[int]:
        for match in re.finditer(rb"\0(%b)\0" % text.encode(), self.data):
            yield self._address(match.start(1))

    def _address(self, offset: int) -> int:
        for _, _, start, address, _, size, _, _ in self.segments:
            if start <= offset < start + size:
                return int(address + offset - start)
        return -1  # in no segment: nothing refers to it

    def _offset(self, address: int) -> int:
        for _, _, start, first, _, size, _, _ in self.segments:
            if first <= address < first + size:
                return int(start + address - first)
        raise NotReadableError(f"no segment holds the address {address:#x}")

    def _references(self) -> Iterator[Tuple[int, int]]:
        """(where, to what) of every ``lea`` that is relative to the place where it stands."""
        for _, flags, start, address, _, size, _, _ in self.segments:
            if not flags & _EXECUTABLE:
                continue
            code = self.data[start : start + size]
            for match in _LEA.finditer(code, 0, max(len(code) - 4, 0)):
                at = match.start()
                yield address + at, address + at + _LEA_SIZE + _DISPLACEMENT.unpack_from(code, at + 3)[0]

    def _direct_calls(self, function: int) -> Iterator[Tuple[int, int]]:
        """(where, to what) of what may be a direct call in a function. Other bytes can look like one."""
        starts = self._function_starts()
        following = bisect.bisect_right(starts, function)
        end = starts[following] if following < len(starts) else function
        code = self.data[self._offset(function) : self._offset(end - 1) + 1] if end > function else b""
        for match in re.finditer(b"\xe8", code[: max(len(code) - 4, 0)]):
            at = match.start()
            yield function + at, function + at + _CALL_SIZE + _DISPLACEMENT.unpack_from(code, at + 1)[0]

    def _function(self, address: int) -> int:
        """Where the function around an address begins."""
        starts = self._function_starts()
        return starts[max(bisect.bisect_right(starts, address) - 1, 0)]

    def _function_starts(self) -> List[int]:
        """Where functions begin, from the table that exceptions are unwound with."""
        if not hasattr(self, "_starts"):
            self._starts = self._read_function_starts()
        return self._starts

    def _read_function_starts(self) -> List[int]:
        for _, _, start, address, *_ in self.exceptions:
            if self.data[start : start + 4] == _EXCEPTION_TABLE_START:
                (count,) = struct.unpack_from("<I", self.data, start + 8)
                pairs = _PAIR.iter_unpack(self.data[start + 12 : start + 12 + _PAIR.size * count])
                return [address + first for first, _ in pairs]
        raise NotReadableError("it has no table of functions (.eh_frame_hdr)")

    def _relocations(self) -> Iterator[Tuple[int, int]]:
        """(where, what) of the addresses that are stored in data when the library is loaded."""
        (table,) = struct.unpack_from("<Q", self.data, 0x28)
        entry, count = struct.unpack_from("<HH", self.data, 0x3A)
        for index in range(count):
            _, kind, _, _, offset, size, *_ = _SECTION_HEADER.unpack_from(self.data, table + index * entry)
            if kind == _SECTION_RELA:
                for place, _, target in _RELA.iter_unpack(self.data[offset : offset + size]):
                    yield place, target

"""C++ types out of mangled names, as far as the arguments of calls need it (the Itanium C++ ABI, section 5.1)."""

from __future__ import annotations

from typing import List, Tuple

_BUILTIN = {
    "a": "signed char", "b": "bool", "c": "char", "d": "double", "e": "long double", "f": "float", "h": "unsigned char",
    "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "n": "__int128", "o": "unsigned __int128",
    "s": "short", "t": "unsigned short", "v": "void", "w": "wchar_t", "x": "long long", "y": "unsigned long long",
}  # fmt: skip
_STANDARD = {
    "a": "std::allocator", "b": "std::basic_string", "s": "std::string", "i": "std::istream", "o": "std::ostream",
    "d": "std::iostream",
}  # fmt: skip
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # substitutions count in base 36


class MangledNameError(ValueError):
    """A name that this module cannot read."""


def template_arguments(mangled: str, template: str) -> Tuple[str, ...]:
    """The types in ``template<TYPES...>``, from a mangled name that begins with the template's name and its pack.

    Types are spelled as in ``std::optional<at::Tensor> const&``.
    """
    start = f"{len(template)}{template}IJ"
    if not mangled.startswith(start):
        raise MangledNameError(f"{mangled[:80]} does not begin with {start}")
    reader = _Reader(mangled, len(start), [template])
    types: List[str] = []
    while not reader.skip("E"):
        types.append(reader.type())
    return tuple(types)


class _Reader:
    """Reads types from a position on. Everything that may be referred to later is remembered, in order."""

    def __init__(self, text: str, position: int, remembered: List[str]) -> None:
        self.text, self.position, self.remembered = text, position, remembered

    def skip(self, expected: str) -> bool:
        found = self.text.startswith(expected, self.position)
        self.position += len(expected) if found else 0
        return found

    def peek(self) -> str:
        if self.position >= len(self.text):
            raise MangledNameError(f"{self.text} ends too early")
        return self.text[self.position]

    def take(self) -> str:
        found = self.peek()
        self.position += 1
        return found

    def remember(self, name: str) -> str:
        self.remembered.append(name)
        return name

    def type(self) -> str:
        for prefix, suffix in (("R", "&"), ("O", "&&"), ("P", "*"), ("K", " const")):
            if self.skip(prefix):
                return self.remember(self.type() + suffix)
        if self.skip("A"):
            length = self.until("_")
            return self.remember(f"{self.type()} [{length}]")
        if self.skip("N"):
            return self.nested()
        if self.skip("Dn"):
            return "std::nullptr_t"
        if self.peek() in "S0123456789":
            return self.plain()
        letter = self.take()
        if letter not in _BUILTIN:
            raise MangledNameError(f"{self.text} has a type that is not read here, at {self.position - 1}")
        return _BUILTIN[letter]

    def plain(self) -> str:
        """A name outside namespaces or in ``std``, or one seen before, with its template arguments."""
        name = self.substitution() if self.at_substitution() else self.remember(self.standard() + self.word())
        return self.with_arguments(name)

    def nested(self) -> str:
        name = self.substitution() if self.at_substitution() else self.standard().rstrip(":")
        while not self.skip("E"):
            if self.peek() == "I":
                name = self.with_arguments(name)
            else:
                name = self.remember(f"{name}::{self.word()}" if name else self.word())
        return name

    def with_arguments(self, name: str) -> str:
        if not self.skip("I"):
            return name
        arguments: List[str] = []
        while not self.skip("E"):
            arguments.append(self.literal() if self.skip("L") else self.type())
        return self.remember(f"{name}<{', '.join(arguments)}>")

    def literal(self) -> str:
        self.type()
        return self.until("E")

    def standard(self) -> str:
        return "std::" if self.skip("St") else ""

    def word(self) -> str:
        digits = ""
        while self.peek().isdigit():
            digits += self.take()
        if not digits:
            raise MangledNameError(f"{self.text} has no name at {self.position}")
        return "".join(self.take() for _ in range(int(digits)))

    def at_substitution(self) -> bool:
        return self.peek() == "S" and not self.text.startswith("St", self.position)

    def substitution(self) -> str:
        self.take()  # S
        if self.peek() in _STANDARD:
            return _STANDARD[self.take()]
        number = 0
        for digit in (sequence := self.until("_")):
            if digit not in _DIGITS:
                raise MangledNameError(f"{self.text} has no number at {self.position}")
            number = number * len(_DIGITS) + _DIGITS.index(digit)
        index = number + 1 if sequence else 0
        if index >= len(self.remembered):
            raise MangledNameError(f"{self.text} refers to a part that was not read")
        return self.remembered[index]

    def until(self, end: str) -> str:
        found = ""
        while not self.skip(end):
            found += self.take()
        return found

"""Compiles the CPU kernels into the package. Metadata stand in pyproject.toml.

Without a C++ compiler the package installs all the same; ``python -m ms_mhc info`` then says what to do.
"""

import importlib.util
import pathlib
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CSRC = pathlib.Path(__file__).parent / "ms_mhc" / "csrc"


def _core():
    """The build script, imported by path: the package itself needs MindSpore, which a build does not."""
    spec = importlib.util.spec_from_file_location("_csrc_build", CSRC / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildCore(build_ext):
    """One library, loaded by path: it has no module name and no Python ABI."""

    compiled = False

    def get_ext_filename(self, fullname):
        """Without the suffix that Python's extension modules carry."""
        return str(pathlib.Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext):
        """Compile, or say why not and go on."""
        core = _core()
        try:
            core.build(pathlib.Path(self.get_ext_fullpath(ext.name)))
            self.compiled = True
        except core.BuildError as error:
            print(f"warning: the CPU kernels are not compiled; MindSpore ops will be used. {error}", file=sys.stderr)

    def copy_extensions_to_source(self):
        """An editable install has the library beside its sources, where there is one."""
        if self.compiled:
            super().copy_extensions_to_source()


core_library = Extension("ms_mhc.csrc.libms_mhc_cpu", sources=[], optional=True)
setup(ext_modules=[core_library], cmdclass={"build_ext": BuildCore})

"""Lets PyPI's torch for x86-64 be imported without the CUDA libraries that it links.

Its wheel names libraries of about 3 GB. On a machine without a GPU none of them is called, but
the dynamic linker wants to find them with all their symbols. This writes a small library in the
place of each; every function in it returns 999, which CUDA takes for an error. Only cudart and
cupti must be installed for real (nvidia-cuda-runtime, nvidia-cuda-cupti): torch calls them while
it is imported. Needs gcc, nm and readelf.
"""
import argparse
import re
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

INSTALLED = re.compile(r"lib(cudart|cupti)\.so")
CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)[A-Za-z_]*\.so")
CUDA_SYMBOL = re.compile(r"(cu|nccl|nv|__nv|_Z.*cu(fft|sparse|blas|dnn))")
FAILURE = 999

# Symbols by version; the version is empty for symbols without one.
Symbols = dict[str, set[str]]


def run(*command: str | Path) -> str:
    """The output of a command."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def defined_symbols(library: Path) -> set[str]:
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


def undefined_symbols(library: Path) -> list[tuple[str, str, str]]:
    """Kind, name and version of every symbol that other libraries must provide."""
    symbols = []
    for line in run("nm", "-D", "--undefined-only", library).splitlines():
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.partition("@")
        symbols.append((kind, name, version.lstrip("@")))
    return symbols


def libraries_by_version(library: Path) -> dict[str, str]:
    """Which needed library each symbol version belongs to."""
    by_version, needed = {}, ""
    for line in run("readelf", "-V", "--wide", library).splitlines():
        if file := re.search(r"File: (\S+)", line):
            needed = file.group(1)
        if (version := re.search(r"Name: (\S+)\s+Flags", line)) and needed:
            by_version[version.group(1)] = needed
    return by_version


def is_stubbed(library: str, folder: Path) -> bool:
    """Whether a needed library is one of CUDA's that torch does not bring and nobody installs."""
    is_cuda = CUDA_LIBRARY.match(library) and not INSTALLED.match(library)
    return bool(is_cuda) and not (folder / library).exists()


def missing_symbols(folder: Path, cuda_folder: Path) -> dict[str, Symbols]:
    """What every missing library has to define, for all libraries in torch's folder."""
    libraries = sorted(path for path in folder.iterdir() if ".so" in path.name)
    provided = set().union(*map(defined_symbols, libraries))
    for library in cuda_folder.iterdir():
        if INSTALLED.match(library.name):
            provided |= defined_symbols(library)
    missing: dict[str, Symbols] = {}
    unversioned = set()
    for library in libraries:
        for needed in re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", library)):
            if is_stubbed(needed, folder):
                missing.setdefault(needed, defaultdict(set))
    for library in libraries:
        owners = libraries_by_version(library)
        for kind, name, version in undefined_symbols(library):
            if version and owners.get(version) in missing:
                missing[owners[version]][version].add(name)
            elif not version and kind == "U" and name not in provided:
                unversioned.add(name)
    if missing:
        # The linker does not mind which library a symbol without a version is found in.
        missing[min(missing)][""] |= {name for name in unversioned if CUDA_SYMBOL.match(name)}
    return missing


def write_stub(path: Path, symbols: Symbols) -> None:
    """Compiles one library."""
    names = sorted(set().union(*symbols.values()))
    functions = "\n".join(f"int {name}(void) {{ return {FAILURE}; }}" for name in names)
    versions = {version: names for version, names in symbols.items() if version}
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stub.c"), Path(folder, "stub.map")
        # A translation unit must not be empty.
        source.write_text(functions + "\nint flash_moe_stub;\n")
        options = [f"-Wl,-soname,{path.name}"]
        if versions:
            script.write_text("\n".join(
                f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};"
                for version, names in versions.items()
            ))
            options.append(f"-Wl,--version-script={script}")
        # -w: some names are known to gcc with other types.
        run("gcc", "-shared", "-fPIC", "-w", "-o", path, source, *options)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site_packages", type=Path, help="where torch and nvidia are installed")
    site_packages = parser.parse_args().site_packages
    folder = site_packages / "torch" / "lib"
    (cuda_folder,) = site_packages.glob("nvidia/cu*/lib")
    for name, symbols in sorted(missing_symbols(folder, cuda_folder).items()):
        write_stub(folder / name, symbols)
        print(f"{name}: {sum(map(len, symbols.values()))} symbols")


if __name__ == "__main__":
    main()

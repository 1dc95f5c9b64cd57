// Compile what is in a folder for the folder that it will be on Lambda: node compile.mjs FOLDER PATH_ON_LAMBDA
// The Python that does it is WebAssembly. Bytecode depends on Python's version, and on nothing of the machine.
import { loadPyodide } from "pyodide";

const [folder, path] = process.argv.slice(2);
const python = await loadPyodide({ args: ["-c", ""], env: { HOME: "/tmp", PYTHONHASHSEED: "0" } });
python.mountNodeFS(path, folder);
python.globals.set("path", path);
const compiled = python.runPython(`
import sys, compileall, py_compile

if sys.version_info[:2] != (3, 13):
    raise RuntimeError("this is Python " + sys.version)
compileall.compile_dir(path, maxlevels=None, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
`);
process.exit(compiled ? 0 : 1);

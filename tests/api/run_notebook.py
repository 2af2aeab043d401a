"""Runs the code cells of a notebook with IPython in a running event loop, as a kernel does; prints what they gave."""

import asyncio
import json
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell


async def main(path: str) -> None:
    shell = InteractiveShell.instance()
    asyncio.get_running_loop()
    for cell in json.loads(Path(path).read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        done = await shell.run_cell_async(source, transformed_cell=shell.transform_cell(source), store_history=True)
        done.raise_error()
        shown = shell.display_formatter.format(done.result)[0] if done.result is not None else {}
        print("shown", json.dumps(sorted(shown)))


asyncio.run(main(sys.argv[1]))

"""The curl examples of the guide run, one after the other, against a real server with a worker."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.clients import a_real_server

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "http.md"
EXAMPLES = re.findall(r"^```bash\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)

BODY = '{"type": "double", "args": [21]}\''
FIND_ID = "ID=$(echo \"$SUBMITTED\" | grep -o '[0-9a-f]\\{8\\}-[0-9a-f-]*' | head -1)"

APP = """
from holdfast import App
app = App()

@app.job
async def double(x: int) -> int:
    return 2 * x
"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl isn't installed")
def test_the_curl_examples_run(tmp_path: Path):
    (tmp_path / "shop.py").write_text(APP)
    url = f"sqlite:///{tmp_path}/jobs.db"
    script = "\n".join(["set -e", *EXAMPLES]).replace("curl", "SUBMITTED=$(curl", 1)
    script = script.replace(BODY, f"{BODY})\n{FIND_ID}", 1)
    with a_real_server(tmp_path, "shop:app", "--url", url) as (base, _):
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "BASE": base, "HOLDFAST_URL": url, "PATH": path}
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(EXAMPLES) >= 4

        shown = subprocess.run(
            [sys.executable, "-m", "holdfast.cli", "jobs", "--json"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert '"state": "cancelled"' in shown.stdout
        assert '"order-42"' in shown.stdout

"""The curl examples of the guide run as they stand, against a real server."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.clients import a_real_server

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "open-job-spec.md"
BLOCK = re.compile(r"^```curl\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
def test_every_curl_example_of_the_guide_succeeds(tmp_path: Path):
    blocks = BLOCK.findall(GUIDE.read_text())
    assert len(blocks) >= 5
    with a_real_server(tmp_path) as (base, _):
        for block in blocks:
            for command in re.split(r"\n(?=curl )", block.replace("http://127.0.0.1:8700", base)):
                done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
                answer = json.loads(done.stdout)
                assert "error" not in answer, f"{command}\n{answer}"
